# Copyright: aiinfra.gpu_node contributors
# Simplified BSD License (see LICENSES/BSD-2-Clause.txt)
# SPDX-License-Identifier: BSD-2-Clause

# PRIVATE to the collection: no stable interface for others.
"""A node's health as Prometheus reads it: the text of a file for node_exporter's textfile collector.

The whole file is written anew each time, so the series of a GPU that is gone go with it. When it was written is a
metric of its own: the collector serves the file of a timer that died as faithfully as a fresh one.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Iterable, Mapping, Sequence

from ansible_collections.aiinfra.gpu_node.plugins.module_utils._results import ERROR, SEVERITY, Finding

FILE = "gpu_node_health.prom"
PREFIX = "gpu_node_health"
#: Number of a status in every metric: from harmless to worst.
CODES = {status: code for code, status in enumerate(SEVERITY)}
_GPU = re.compile(r"^gpu(\d+)(?:\s|$)")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric: its name without the prefix, what it means, and its series as labels and value."""

    name: str
    about: str
    series: Sequence[tuple[Mapping[str, str], float]]


def code_of(status: str) -> int:
    """Return the number of a status; one that is not known counts as the worst."""
    return CODES.get(status, len(SEVERITY) - 1)


def escaped(text: str) -> str:
    """Return a label's value as the text format wants it."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def text(metrics: Iterable[Metric]) -> str:
    """Return the file; every metric has its HELP and TYPE, and all are gauges: they are set anew each time."""
    lines = []
    for metric in metrics:
        name = f"{PREFIX}_{metric.name}"
        lines += [f"# HELP {name} {metric.about}", f"# TYPE {name} gauge"]
        for labels, value in metric.series:
            inner = ",".join(f'{key}="{escaped(item)}"' for key, item in labels.items())
            lines.append(f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(round(float(value), 6))


def metrics(
    status: str,
    may_serve: bool,
    findings: Sequence[Finding],
    gpus: Mapping[str, str],
    taken_at: float,
    duration_s: float,
    nvml_duration_s: float = 0.0,
    nvml_calls: int = 0,
    info: Mapping[str, str] | None = None,
) -> list[Metric]:
    """Return the metrics of one run.

    Args:
        status: The verdict.
        may_serve: Whether the node may serve.
        findings: All of them.
        gpus: Target of each GPU to its status.
        taken_at: When the node was read, in seconds since the epoch.
        duration_s: Seconds that the run took.
        nvml_duration_s: Seconds of it in the child that reads NVML.
        nvml_calls: NVML calls that were made.
        info: Labels of the metric that tells versions.
    """
    codes = ", ".join(f"{code} {status}" for status, code in CODES.items())
    counts = {name: sum(1 for finding in findings if finding.status == name) for name in SEVERITY}
    return [
        Metric("verdict", f"Worst status of the node: {codes}.", [({}, code_of(status))]),
        Metric("may_serve", "Whether the node may serve: 1 yes, 0 no.", [({}, 1 if may_serve else 0)]),
        Metric("gpu", f"Worst status of each GPU: {codes}.", _gpus(gpus)),
        Metric("check", f"Status of each check: {codes}.", _checks(findings)),
        Metric("findings", "Findings by status.", [({"status": name}, count) for name, count in counts.items()]),
        Metric(
            "last_run_timestamp_seconds",
            "When the node was read. Alert on its age: a file that is no longer written keeps its last verdict.",
            [({}, round(taken_at, 3))],
        ),
        Metric("duration_seconds", "How long the run took.", [({}, duration_s)]),
        Metric("nvml_duration_seconds", "How long the driver was read.", [({}, nvml_duration_s)]),
        Metric("nvml_calls", "Calls to NVML in the run.", [({}, nvml_calls)]),
        Metric("info", "Versions, as labels; always 1.", [(dict(info or {}), 1)]),
    ]


def _labels(target: str) -> dict[str, str]:
    """Return the labels of what was looked at; ``gpu`` is empty for what is no GPU by NVML's count."""
    match = _GPU.match(target)
    return {"gpu": match.group(1) if match else "", "target": target}


def _gpus(gpus: Mapping[str, str]) -> list[tuple[Mapping[str, str], float]]:
    return [(_labels(target), code_of(status)) for target, status in gpus.items()]


def _checks(findings: Iterable[Finding]) -> list[tuple[Mapping[str, str], float]]:
    """Return a series a check and target: two of the same name would make the whole file unreadable."""
    worst: dict[tuple[str, str], int] = {}
    for finding in findings:
        key = (finding.check, finding.target)
        worst[key] = max(worst.get(key, 0), code_of(finding.status))
    return [({"check": check, **_labels(target)}, code) for (check, target), code in worst.items()]


def crashed(reason: str, now: float) -> list[Metric]:
    """Return the metrics of a run that could not judge: the verdict is that the truth is not known.

    Args:
        reason: What went wrong, in a line.
        now: Seconds since the epoch.
    """
    finding = Finding("node.health_agent", "node", ERROR, reason, hint=reason)
    return metrics(finding.status, False, [finding], {}, now, 0.0)
