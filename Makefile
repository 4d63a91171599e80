# Every target explains itself: `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON   ?= python3
VENV     := .venv
BIN      := $(CURDIR)/$(VENV)/bin
GPULAB   := lab/bin/gpulab
LAB_NODE ?= gpu-lab-1
SUITE    ?= bookworm
# LAB=vm: a virtual machine that really boots instead of a container; VM=0: `make test` without virtual machines.
LAB      ?= container
VM       ?= 1
VM_NODE  ?= gpu-vm-1
SCENARIO ?=
export PATH := $(BIN):$(PATH)
# The scenarios live at the root, as in most collections; molecule 26 would rather see them under extensions/.
export MOLECULE_GLOB := molecule/*/molecule.yml

.PHONY: help setup images vm-images lab lab-down lint unit sanity molecule lab-tests vm-test vm-test-short test test-real bench readmes clean

help: ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.ready ## Install the pinned toolchain into .venv

$(VENV)/.ready: requirements.txt
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
	  echo "==> installing python3-venv"; apt-get update -qq || true; apt-get install -y -qq --no-install-recommends python3-venv; }
	@echo "==> installing the pinned toolchain into $(VENV) (0.8 GB, a few minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --disable-pip-version-check --progress-bar off -r requirements.txt | \
	  sed -un 's/^Collecting \([^ ]*\).*/    \1/p'
	@touch $@

images: ## Build the lab's images and package repositories (cached)
	@$(GPULAB) setup

lab: setup ## Take a bare simulated node to a tuned node with a pinned driver, and print its report (LAB=vm: one that boots)
ifeq ($(LAB),vm)
	@$(GPULAB) setup
	@$(GPULAB) vm up $(VM_NODE) --gpus 2 --gpu-model h100-sxm
	ansible-playbook site.yml -i inventories/lab-vm
else
	@$(GPULAB) setup --suite $(SUITE)
	@$(GPULAB) up $(LAB_NODE) --suite $(SUITE) --gpus 2 --gpu-model h100-sxm
	ansible-playbook site.yml -i inventories/lab
	@echo "==> nouveau has the cards until a reboot, which is left to you:"
	@echo "      $(GPULAB) reboot $(LAB_NODE)"
	@echo "      $(VENV)/bin/ansible-playbook playbooks/verify.yml -i inventories/lab"
endif

lab-down: ## Remove every container and virtual machine of the lab
	@$(GPULAB) vm down --all
	@$(GPULAB) down --all

lint: setup ## yamllint, ansible-lint, ruff, mypy, argument specs, READMEs, forbidden content
	@tests/lint/run.sh

unit: setup ## Unit tests: knowledge in module_utils, tables, lab logic
	@$(GPULAB) tools
	@python -m pytest tests/unit -n 2

sanity: setup ## ansible-test sanity on an exported tree
	@python tests/sanity/run.py

molecule: setup images ## Test roles in containers; SCENARIO=name for one of them
	@tests/run_molecule.py $(SCENARIO)

lab-tests: setup images ## Faults on lab nodes: killed runs, bad input, the cases that need a node
	@python -m pytest tests/lab -p no:xdist

vm-images: images ## Build the disk that virtual machines start from (cached)
	@$(GPULAB) vm setup

vm-test: setup vm-images ## Virtual machines: the whole kernel and driver life (up to 30 minutes without KVM)
	@python -m pytest tests/vm -p no:xdist

vm-test-short: setup vm-images ## Of that, the short path: a surprise kernel and one rollback
ifeq ($(VM),0)
	@echo "VM=0: tests on virtual machines are left out"
else
	@python -m pytest tests/vm -p no:xdist -m short
endif

test: setup ## Every check but the ones with long downloads or builds
	@tests/run_all.py

test-real: setup images ## Debian's own non-free packages: nvidia-smi, and drivers compiled for real kernels (some 40 minutes)
	@$(GPULAB) tools
	@python -m pytest tests/real -p no:xdist -rs
	@tests/run_molecule.py nvidia_driver_real

bench: setup images ## Measure first run, second run and the floor; writes bench/RESULTS.md
	@python bench/run.py

readmes: setup ## Write the roles' READMEs and docs/health-checks.md from specs and code
	@python tests/lint/gen_role_readme.py
	@python tests/lint/gen_health_checks.py

clean: ## Remove the lab, the virtual environment and all caches
	@if [ -d lab/cache ]; then $(GPULAB) teardown; fi
	rm -rf $(VENV) .ansible .cache .pytest_cache .mypy_cache .ruff_cache lab/cache lab/out reports
