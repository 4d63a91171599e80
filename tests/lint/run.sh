#!/usr/bin/env bash
# Every static check, each named; all run, the first failure decides the exit status.
set -u
cd "$(dirname "$0")/../.."
status=0

step() {  # step NAME COMMAND...: runs one check and remembers a failure
  local name=$1
  shift
  echo "--> ${name}"
  "$@" || { status=1; echo "!!! ${name} failed" >&2; }
}

step yamllint yamllint --strict .
step "ruff check" ruff check .
step "ruff format" ruff format --check .
step mypy mypy plugins/module_utils
step "argument specs" python tests/lint/check_argument_specs.py
step "role READMEs" python tests/lint/gen_role_readme.py --check
step "health checks page" python tests/lint/gen_health_checks.py --check
step "forbidden content" python tests/lint/check_forbidden.py
step "licence headers" python tests/lint/check_headers.py
step changelog antsibull-changelog lint
step ansible-lint ansible-lint --offline --profile production
exit "${status}"
