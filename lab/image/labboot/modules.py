# SPDX-License-Identifier: GPL-3.0-or-later
"""Loading and unloading the simulated GPU modules of the running node."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from . import machine
from .gpus import Gpu, gpus, nvswitches, parse_state, refusal, version_text
from .kernels import module_index, normalise

STATE = "/var/lib/simgpu/state"
SIMGPU = "/usr/local/bin/simgpu"
MODPROBE = "/usr/lib/gpu-node-lab/kmod/modprobe"
SWITCH_DRIVER = "nvidia-nvswitch"
COMPILER = "gcc version 12.2.0 (Debian 12.2.0-14)"
# Debian renames the files (nvidia-current.ko, of the open flavour nvidia-current-open.ko), not the module inside.
_RENAMED = ("_current_open", "_current")
_FAMILY = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
_USES = {"nvidia_uvm": ["nvidia"], "nvidia_modeset": ["nvidia"], "nvidia_drm": ["nvidia", "nvidia_modeset"]}


class LoadError(Exception):
    """What modprobe would say."""


def loaded() -> list[str]:
    """Names of the simulated modules that are loaded, in the order of loading."""
    text = machine.read(machine.RUN + "/loaded")
    return text.split()


def _remember(names: list[str]) -> None:
    machine.write(machine.RUN + "/loaded", "".join(name + "\n" for name in names))
    lines = []
    for name in reversed(names):
        users = [user for user in names if name in _USES.get(user, [])]
        size = 62000000 if name == "nvidia" else 1800000
        shown = "".join(user + "," for user in users) or "-"
        lines.append(f"{name} {size} {len(users)} {shown} Live 0x0000000000000000 (POE)\n")
    host = machine.read(machine.RUN + "/host-proc-modules")
    machine.write(machine.FACES + "/proc/modules", "".join(lines) + host)
    for name in names:
        users = [user for user in names if name in _USES.get(user, [])]
        holders = f"/sys/module/{name}/holders"
        shutil.rmtree(holders, ignore_errors=True)
        os.makedirs(holders, exist_ok=True)
        for user in users:
            os.symlink("../../" + user, os.path.join(holders, user))
        machine.write(f"/sys/module/{name}/refcnt", f"{len(users)}\n")


def modinfo(path: str, field: str) -> str:
    """One field of a module file, by the real modinfo."""
    done = subprocess.run(["modinfo", "-F", field, path], capture_output=True, text=True, check=False)
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else ""


def _add(name: str, path: str, version: str) -> None:
    folder = "/sys/module/" + name
    if os.path.islink(folder):
        os.unlink(folder)
    for field, text in {
        "version": version,
        "srcversion": modinfo(path, "srcversion"),
        "initstate": "live",
        "coresize": "62000000",
        "taint": "POE",
        "refcnt": "0",
    }.items():
        if text:
            machine.write(os.path.join(folder, field), text + "\n")
    os.makedirs(folder + "/parameters", exist_ok=True)


def usual_name(name: str) -> str:
    """The module's own name, whatever Debian calls its file: nvidia-current-open-uvm is nvidia_uvm."""
    stem = normalise(name)
    for renamed in _RENAMED:
        if stem.startswith("nvidia" + renamed):
            return "nvidia" + stem[len("nvidia" + renamed) :]
    return stem


def candidates(release: str, name: str) -> str:
    """Path of the module file that stands for this name on this kernel, "" when its index has none."""
    index = module_index("/", release)
    head, _, tail = usual_name(name).partition("_")
    for renamed in ("", *_RENAMED):
        wanted = head + renamed + ("_" + tail if tail else "")
        if wanted in index:
            return f"/lib/modules/{release}/{index[wanted]}"
    return ""


def current_gpus() -> list[Gpu]:
    """The GPUs of the state file."""
    return gpus(parse_state(machine.read(STATE)))


def current_switches() -> list[Gpu]:
    """The NVSwitches of the state file."""
    return nvswitches(parse_state(machine.read(STATE)))


def load_nvidia(release: str, parameters: list[str] | None = None) -> list[str]:
    """The driver core binds to every GPU it can drive; ENODEV when there is none, as the real one."""
    if "nvidia" in loaded():
        return []
    path = candidates(release, "nvidia")
    if not path:
        raise LoadError(f"FATAL: Module nvidia not found in directory /lib/modules/{release}")
    version = modinfo(path, "version")
    flavour = "open" if "GPL" in modinfo(path, "license") else "proprietary"
    reasons = []
    bound = []
    for gpu in current_gpus():
        taken = machine.bound_driver(gpu)
        reason = "already driven by " + taken if taken not in ("", "nvidia") else refusal(gpu, version, flavour)
        if reason:
            reasons.append(f"{gpu.address}: {reason}")
        else:
            bound.append(gpu)
    if not bound:
        detail = "; ".join(reasons) or "no NVIDIA GPU found"
        raise LoadError(f"ERROR: could not insert 'nvidia': No such device ({detail})")
    for gpu in bound:
        machine.bind(gpu, "nvidia")
        machine.write(
            f"/proc/driver/nvidia/gpus/{gpu.address}/information",
            f"Model: \t\t {gpu.name}\nIRQ:   \t\t 0\nGPU UUID: \t {gpu.uuid}\nBus Type: \t PCIe\n"
            f"Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.index}\n",
        )
    for switch in current_switches():
        machine.bind(switch, SWITCH_DRIVER)
        machine.write(f"/proc/driver/{SWITCH_DRIVER}/devices/{switch.address}/information", f"{switch.name}\n")
    built = time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(os.stat(path).st_mtime))
    machine.write("/proc/driver/nvidia/version", version_text(version, flavour, built, COMPILER))
    machine.write("/proc/driver/nvidia/params", "".join(f"{item}\n" for item in parameters or []))
    _add("nvidia", path, version)
    _remember([*loaded(), "nvidia"])
    machine.make_nodes([gpu.index for gpu in bound], control=True, uvm=False)
    return reasons


def load_helper(release: str, name: str) -> None:
    """nvidia_uvm, nvidia_modeset or nvidia_drm, with what they need."""
    name = usual_name(name)
    if name in loaded():
        return
    path = candidates(release, name)
    if not path:
        raise LoadError(f"FATAL: Module {name} not found in directory /lib/modules/{release}")
    if "nvidia" not in loaded():
        load_nvidia(release)
    version = modinfo(path, "version")
    running = machine.read("/sys/module/nvidia/version").strip()
    if version and running and version != running:
        raise LoadError(f"ERROR: could not insert '{name}': Invalid argument")
    for needed in _USES.get(name, []):
        if needed not in loaded():
            load_helper(release, needed)
    _add(name, path, version)
    _remember([*loaded(), name])
    machine.make_nodes([], control=False, uvm=name == "nvidia_uvm")


def load_family(release: str) -> list[str]:
    """What a boot loads: the core, then each helper module that this kernel has."""
    notes = load_nvidia(release)
    for name in _FAMILY[1:]:
        if candidates(release, name):
            try:
                load_helper(release, name)
            except LoadError as error:
                notes.append(str(error))
    return notes


def load_nouveau(release: str) -> None:
    """The free driver takes every GPU that nobody has."""
    if "nouveau" in loaded():
        return
    path = candidates(release, "nouveau")
    if not path:
        raise LoadError(f"FATAL: Module nouveau not found in directory /lib/modules/{release}")
    _add("nouveau", path, "")
    _remember([*loaded(), "nouveau"])
    for gpu in current_gpus():
        if not machine.bound_driver(gpu):
            machine.bind(gpu, "nouveau")


def unload(name: str, with_users: bool = False) -> None:
    """As rmmod; with_users as modprobe -r, which takes unused dependencies along."""
    name = usual_name(name)
    names = loaded()
    if name not in names:
        if with_users:
            return
        raise LoadError(f"ERROR: Module {name} is not currently loaded")
    users = [user for user in names if name in _USES.get(user, [])]
    if users:
        raise LoadError("ERROR: Module {} is in use by: {}".format(name, " ".join(users)))
    in_use = parse_state(machine.read(STATE)).get(f"module.{name}.in_use", "0")
    if in_use not in ("", "0"):
        raise LoadError(f"ERROR: Module {name} is in use")
    shutil.rmtree("/sys/module/" + name, ignore_errors=True)
    if name in ("nvidia", "nouveau"):
        machine.unbind_all(name)
    if name == "nvidia":
        machine.unbind_all(SWITCH_DRIVER)
        for driver in ("nvidia", SWITCH_DRIVER):
            shutil.rmtree("/proc/driver/" + driver, ignore_errors=True)
        machine.drop_nodes()
        # What lived in the driver (persistence mode, power limits) is gone with it, as at a power cycle.
        if os.access(SIMGPU, os.X_OK):
            subprocess.run([SIMGPU, "boot"], check=False)
    _remember([item for item in names if item != name])
    if with_users:
        for needed in reversed(_USES.get(name, [])):
            if needed in loaded() and not [u for u in loaded() if needed in _USES.get(u, [])]:
                unload(needed, with_users=True)
