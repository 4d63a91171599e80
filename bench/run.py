#!/usr/bin/env python3
"""Measures, most of it on lab nodes, and writes bench/RESULTS.md, all parts or those that are named.

Medians and ratios are what counts; single times on a shared machine are not.
"""

from __future__ import annotations

import argparse
import sys

import batch
import nvml_reading
import site_runs
import way_back


def main() -> int:
    """Measure and write the results; 1 when a budget is missed."""
    parts = ("site", "batch", "rollback", "nvml")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(parts)}; all when none is named")
    parser.add_argument("--suite", default="bookworm")
    parser.add_argument("--first-runs", type=int, default=3)
    parser.add_argument("--second-runs", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rollbacks", type=int, default=3)
    parser.add_argument("--readings", type=int, default=21)
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(parts))
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(parts)}")
    chosen = options.parts or list(parts)
    kept = []
    if "site" in chosen:
        kept.append(site_runs.measure(options.suite, options.first_runs, options.second_runs))
    if "batch" in chosen:
        kept.append(batch.measure(options.suite, options.pairs))
    if "rollback" in chosen:
        kept.append(way_back.measure(options.rollbacks))
    if "nvml" in chosen:
        kept.append(nvml_reading.measure(options.readings))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
