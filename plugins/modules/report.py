#!/usr/bin/python
# Copyright: aiinfra.gpu_node contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: report
short_description: Write and print the report of a verification
version_added: 0.1.0
author:
  - aiinfra.gpu_node contributors (@aiinfra)
description:
  - Judges the findings of all nodes, writes C(report.json) and C(junit.xml) on the controller, prints a table with
    what is wrong and what to do, and returns the verdict.
  - A node that is named in O(hosts) but has no findings counts as an error; so does a finding with an unknown status,
    and a skipped one without a reason.
  - The task never reports a change, since a report changes no node.
  - Run it once for all nodes, with C(run_once).
  - Compares with the report that is in O(path) from an earlier run. With C(--diff) it prints what changed.
options:
  path:
    description:
      - Directory on the controller for the two files. It is created when missing.
      - A relative path starts at the directory in which C(ansible-playbook) was started.
    type: path
    required: true
  hosts:
    description:
      - Every node that was to be verified.
    type: list
    elements: str
    required: true
  findings:
    description:
      - The findings, a dictionary from node name to list of findings.
      - V(null) or an empty list say that the node was not verified.
    type: dict
    required: true
  started:
    description:
      - When the verification began, as RFC 3339 text. By default the time of this task.
    type: str
  enforce:
    description:
      - Whether the task fails when the verdict is not V(PASS). The files are written and the table is printed before.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Prints and judges as usual, also with O(enforce=true), but writes no file.
  diff_mode:
    support: partial
    description: Prints what changed since the last report; nothing counts as changed.
  platform:
    platforms: posix
    support: full
    description: Runs on the controller only.
"""

EXAMPLES = r"""
- name: Write the report of all nodes
  aiinfra.gpu_node.report:
    path: reports
    hosts: "{{ ansible_play_hosts_all }}"
    findings: >-
      {{ dict(ansible_play_hosts_all | zip(ansible_play_hosts_all | map('extract', hostvars, 'gpu_node_findings'))) }}
    enforce: true
  run_once: true
  delegate_to: localhost
"""

RETURN = r"""
verdict:
  description: V(PASS) when every node may serve, otherwise V(FAIL).
  type: str
  returned: always
  sample: PASS
counts:
  description: How many findings of all nodes have each status.
  type: dict
  returned: always
  sample: {ok: 37, skipped: 4, warn: 1, fail: 0, error: 0}
bad_nodes:
  description: The nodes that may not serve.
  type: list
  elements: str
  returned: always
  sample: []
changes:
  description:
    - What changed since the report that was in O(path), also without C(--diff). Empty where there was none.
    - A value that moves while all is well is no change.
  type: list
  elements: dict
  returned: always
  contains:
    node:
      description: Name of the node.
      type: str
    check:
      description: Name of the check; empty for a node that came or went.
      type: str
    target:
      description: What was looked at.
      type: str
    kind:
      description: V(status), V(expected), V(value), V(new) or V(gone).
      type: str
    before:
      description: Status or value then; null for what is new.
      type: raw
    after:
      description: Status or value now; null for what went.
      type: raw
compared_with:
  description: When the report was made that RV(changes) compare with; empty where there was none.
  type: str
  returned: always
  sample: "2026-01-31T10:00:00Z"
paths:
  description: Where the files are, or would be in check mode.
  type: dict
  returned: always
  sample: {report.json: /srv/reports/report.json, junit.xml: /srv/reports/junit.xml}
written:
  description: Whether the files were written; not in check mode.
  type: bool
  returned: always
  sample: true
"""
