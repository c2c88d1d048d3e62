"""A panel and a dashboard, the queries that panels share, and the panels of every service.

Promises that a query reads only the suites that the page's variable `source` selects. Never renders:
`dashboards.py` does.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries by their name in the legend; `kind` is Grafana's panel type."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""
    kind: str = "timeseries"
    width: int = 12


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A page of panels."""

    uid: str
    title: str
    panels: tuple[Panel, ...]


# The sinks' processes, of which each has its own name.
SINKS = "sink-.+"


def _choice(name: str, value: str) -> str:
    return f'{name}=~"{value}"' if value == SINKS else f'{name}="{value}"'


def selected(metric: str, **labels: str) -> str:
    """A metric of the selected suites."""
    chosen = "".join(f",{_choice(name, value)}" for name, value in labels.items())
    return f'{metric}{{source=~"$source"{chosen}}}'


def rate(metric: str, by: str = "source", **labels: str) -> str:
    return f"sum by ({by}) (rate({selected(metric, **labels)}[$__rate_interval]))"


def quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', by='source, le')})"


def rare(metric: str) -> str:
    """A counter that has no series until its first increment."""
    return f"sum by (source) ({selected(metric)}) or on () vector(0)"


def _kinds(service: str) -> str:
    errors = selected("headrace_errors_total", service=service)
    return f"sum by (level, kind) (increase({errors}[5m])) or on () vector(0)"


def stat(title: str, unit: str, query: str, about: str = "", width: int = 4) -> Panel:
    legend = "{{service}}" if SINKS in query else "{{source}}"
    return Panel(title, unit, {legend: query}, about, "stat", width)


def _instances(service: str) -> Panel:
    """The number of instances. Telemetry doesn't count itself, and a mirror doesn't report to
    telemetry.
    """
    if service == "telemetry":
        return stat(
            "Services that have reported",
            "short",
            f"count by (source) ({selected('headrace_up')})",
            width=6,
        )
    if service == "mirror":
        ready = selected("headrace_ready", service=service)
        return stat(
            "Mirrors",
            "short",
            f"count by (source) ({ready})",
            "Mirrors that Prometheus scrapes.",
            width=6,
        )
    return stat("Instances", "short", selected("headrace_instances", service=service), width=6)


def away(service: str, part: str) -> str:
    """1 while a destination of the service is unavailable."""
    return f"{selected('headrace_not_ready', service=service, part=part)} or on () vector(0)"


def process(service: str) -> tuple[Panel, ...]:
    """The first panels of every service's dashboard."""
    legend = "{{service}}" if service == SINKS else "{{source}}"
    by = "source, service" if service == SINKS else "source"
    return (
        stat(
            "Ready",
            "bool_yes_no",
            selected("headrace_ready", service=service),
            'The panel "Not ready because of" names the reason.',
            6,
        ),
        _instances(service),
        stat("Up for", "s", selected("headrace_uptime_seconds", service=service), width=6),
        stat("NATS", "bool_yes_no", selected("headrace_nats_connected", service=service), width=6),
        Panel("Memory", "bytes", {legend: selected("headrace_memory_bytes", service=service)}),
        Panel(
            "Processor",
            "percentunit",
            {legend: rate("headrace_cpu_seconds_total", by, service=service)},
        ),
        Panel(
            "Warnings and errors by kind",
            "short",
            {"{{level}} {{kind}}": _kinds(service)},
        ),
        Panel(
            "Not ready because of",
            "short",
            {
                "{{part}}": f"max by (part) ({selected('headrace_not_ready', service=service)}) or on () vector(0)"
            },
        ),
    )
