"""The result of a benchmark: each figure with its limit, as a table for people and as a line of the
history.
"""

from __future__ import annotations

import json
import os
import platform
import sysconfig
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib import metadata
from operator import itemgetter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.accelerator import native

_JUDGED = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}
_POINTS_MAX = 60
HISTORY = Path(__file__).parents[2] / "docs/benchmarks/history.jsonl"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line: what was measured, and what it is held against; `ratio` and `target` only where
    there is a limit.
    """

    name: str
    value: float
    unit: str
    limit: float | None = None
    limit_name: str = ""
    ratio: float | None = None
    target: str = ""
    met: bool | None = None
    # Processor time for each event, by process, in microseconds.
    cpu_us: dict[str, float] = field(default_factory=dict)
    rss_mib: dict[str, float] = field(default_factory=dict)
    # Seconds and MiB, over time, by process.
    rss_series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def against(
    name: str, value: float, unit: str, limit: float, limit_name: str, least: float
) -> Figure:
    """A figure that must reach a share of its limit."""
    ratio = value / limit
    return Figure(name, value, unit, limit, limit_name, ratio, f"≥ {least:g}", ratio >= least)


def beside(name: str, value: float, unit: str, limit: float, limit_name: str) -> Figure:
    """A figure with its limit, and no target."""
    return Figure(name, value, unit, limit, limit_name, value / limit)


def within(
    name: str, value: float, unit: str, limit: float, limit_name: str, most: float
) -> Figure:
    """A figure that must stay within a multiple of its limit."""
    ratio = value / limit
    return Figure(name, value, unit, limit, limit_name, ratio, f"≤ {most:g}", ratio <= most)


def plain(name: str, value: float, unit: str, most: float | None = None) -> Figure:
    """A figure on its own, with a bound or without."""
    return Figure(
        name,
        value,
        unit,
        target="" if most is None else f"≤ {most:g} {unit}",
        met=None if most is None else value <= most,
    )


def show(figures: list[Figure], title: str, console: Console) -> None:
    table = Table(title=title)
    for heading in (
        "what",
        "figure",
        "limit",
        "ratio",
        "target",
        "",
        "CPU µs per event",
        "RSS max, MiB",
    ):
        table.add_column(
            heading, justify="right" if heading in ("figure", "limit", "ratio") else "left"
        )
    for figure in figures:
        limit = "" if figure.limit is None else f"{_number(figure.limit)} ({figure.limit_name})"
        table.add_row(
            figure.name,
            f"{_number(figure.value)} {figure.unit}",
            limit,
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            figure.target,
            _JUDGED[figure.met],
            "\n".join(f"{name} {value:.2f}" for name, value in figure.cpu_us.items()),
            "\n".join(f"{name} {value:.0f}" for name, value in figure.rss_mib.items()),
        )
    console.print(table)


def line(figures: list[Figure], rows: int) -> str:
    """One run as a line of JSON; nothing in it tells whose machine it was."""
    return json.dumps(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "version": metadata.version("headrace"),
            "python": platform.python_version(),
            # A Python that was built without it is a quarter slower.
            "python_optimized": "--enable-optimizations"
            in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
            "accelerator": native is not None,
            "cores": len(os.sched_getaffinity(0)),
            # Beyond the cores there are, others took part of the machine, and of the figures.
            "load": round(os.getloadavg()[0], 1),
            "rows": rows,
            "figures": [
                asdict(replace(figure, rss_series=_thinned(figure.rss_series)))
                for figure in figures
            ],
        },
        ensure_ascii=False,
    )


def _thinned(series: dict[str, list[tuple[float, float]]]) -> dict[str, list[tuple[float, float]]]:
    """As many points as a picture shows: of neighbours the highest."""
    thin = {}
    for name, points in series.items():
        step = -(-len(points) // _POINTS_MAX) or 1
        thin[name] = [
            max(points[at : at + step], key=itemgetter(1)) for at in range(0, len(points), step)
        ]
    return thin


def keep(text: str) -> None:
    """Add a run to the history."""
    HISTORY.parent.mkdir(parents=True, exist_ok=True)
    with HISTORY.open("a") as history:
        history.write(f"{text}\n")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
