"""Generates docs/metrics.md, the reference page of all metrics, from their declarations.

Owns the page's form and none of its facts. Run as `python -m headrace.metrics.reference_page PATH`
it writes the page; a test keeps the page up to date. Nothing else imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from headrace.metrics.catalogue import BRIDGE_FIGURES, EVERY, FIGURES, SERVICES, Figure

_INTRODUCTION = """\
# Metrics

Every service serves its own metrics at `/metrics` on its HTTP port, in Prometheus's text form. Telemetry's `/metrics`
(port 9090) has those of the whole suite, so scraping telemetry alone is enough. Scrape all five, and each figure comes
twice: then choose by `job` or `instance`. A mirror and a verifier report to no telemetry: scrape them, too (`--http`).

Every metric has two labels besides those below:

- `service`: who reports it, such as `publisher`;
- `source`: the replication slot. Two suites in one Prometheus differ by it.

The Prometheus operator has a target label `service` of its own: set `honorLabels: true` in a ServiceMonitor, or ours
becomes `exported_service`.

Counters end in `_total`. A histogram has the suffixes `_bucket`, `_sum` and `_count`. A metric named by a state
(`headrace_slot_wal_status`) has a series for each state, 1 for the one it is and 0 for the others. LSNs are numbers.
Labels have a bounded number of values. Of a service that fell silent, telemetry shows `headrace_up` 0 and nothing else.

How to watch a suite with them is in [Operations](operations.md).

This page is generated from the declarations in `libs/headrace/metrics/catalogue.py`; don't edit it.
"""
_BRIDGE = """\
## The bridge's names

Telemetry serves these too, without labels, for dashboards made for the PG→NATS bridge.
"""


def page() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, f"## Every service\n\n{_table(_of(EVERY))}"]
    parts += [f"## {service}\n\n{_table(_of(service))}" for service in SERVICES]
    bridge = "\n".join(
        f"| `bridge_{figure.key}{'_total' if figure.kind == 'counter' else ''}` | {figure.kind} | {figure.explain} |"
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
