"""Generates docs/metrics.md, the reference page of all metrics, from their declarations.

Owns the page's form and none of its facts. Run as `python -m headrace.metrics.reference_page PATH`
it writes the page; a test keeps the page up to date. Nothing else imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.metrics.catalogue import BRIDGE_FIGURES, FIGURES
from headrace.metrics.figure import EVERY, SERVICES, Figure

_INTRODUCTION = """\
# Metrics

Every service serves its own metrics at `/metrics` on its HTTP port, in Prometheus's text format.
Telemetry's `/metrics` (port 9090) contains those of the whole suite, so it is enough to scrape
telemetry. If you scrape every service as well, each metric appears twice: then select by `job` or
`instance`. Mirrors and verifiers don't report to telemetry: scrape them separately (`--http`).

Every metric has two labels in addition to those below:

- `service`: the service that reports it, such as `publisher`;
- `source`: the replication slot, which distinguishes several suites in one Prometheus.

The Prometheus operator has its own target label `service`: set `honorLabels: true` in a
ServiceMonitor, or Headrace's label is renamed to `exported_service`.

Counters end in `_total`. A histogram has the suffixes `_bucket`, `_sum` and `_count`. A metric
named after a state (`headrace_slot_wal_status`) has one series per state: 1 for the current state
and 0 for the others. LSNs are numbers. Labels have a bounded number of values. When a service stops
reporting, telemetry shows only `headrace_up` 0 for it, until it has
[forgotten](operations.md#http-endpoints) the service.

[Operations](operations.md) explains how to monitor a suite with them.

This page is generated from the declarations in `libs/headrace/metrics/catalogue.py`; don't edit it.
"""
_BRIDGE = """\
## The bridge's names

Telemetry also serves these, without labels, for dashboards made for the PG→NATS bridge.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, f"## Every service\n\n{_table(_of(EVERY))}"]
    parts += [f"## {service}\n\n{_table(_of(service))}" for service in SERVICES]
    bridge = "\n".join(
        (
            f"| `bridge_{figure.key}{'_total' if figure.kind == 'counter' else ''}` | "
            f"{figure.kind} | {figure.explain} |"
        )
        for figure in BRIDGE_FIGURES
    )
    parts.append(f"{_BRIDGE}\n| metric | kind | what it is |\n|---|---|---|\n{bridge}\n")
    return "\n".join(parts)


def _of(service: str) -> Iterator[Figure]:
    return (figure for figure in FIGURES if service in figure.of.split(", "))


def _table(figures: Iterable[Figure]) -> str:
    rows = "\n".join(
        f"| `{figure.metric}` | {figure.kind} | "
        f"{', '.join(f'`{label}`' for label in figure.labels)} "
        f"| {figure.explain} |"
        for figure in figures
    )
    return f"| metric | kind | labels | what it is |\n|---|---|---|---|\n{rows}\n"


def main() -> None:
    Path(sys.argv[1]).write_text(page())


if __name__ == "__main__":
    main()
