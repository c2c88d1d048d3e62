"""Renders the screen of `headrace top`, from the current status and earlier ones."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headrace.cli.watch.status import STYLES, size, span
from headrace.metrics.counters import quantile

_BARS = "▁▂▃▄▅▆▇█"
SAMPLES_MAX = 60
# Latencies are of frames acknowledged within this many samples.
RECENT = 10
_ALARMS = {"ok": "green", "warning": "yellow", "critical": "red", "lost": "red bold"}
TABLES_MAX = 8
ERRORS_MAX = 6
RATIO_LOW = 0.25
RATIO_MIN = 0.1


@dataclass(slots=True)
class Past:
    """The last minute of a suite, a sample for each answer of telemetry."""

    at: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX + 1))
    bodies: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT + 1))
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    lags: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def add(self, now: float, body: dict[str, Any]) -> None:
        if self.bodies:
            more = body["cdc_events_published"] - self.bodies[-1]["cdc_events_published"]
            # A restarted publisher counts from zero.
            self.rates.append(max(0.0, more / max(now - self.at[-1], 0.001)))
        self.at.append(now)
        self.bodies.append(body)
        self.lags.append(body["wal_lag_bytes"])

    @property
    def now(self) -> dict[str, Any]:
        return self.bodies[-1]

    def per_second(self, service: str, key: str, series: str | None = None) -> float:
        """The growth rate of a service's metric."""
        if len(self.bodies) < 2:
            return 0.0
        first, last = (
            _number(figures(body, service), key, series)
            for body in (self.bodies[0], self.bodies[-1])
        )
        elapsed = self.at[-1] - self.at[-len(self.bodies)]
        if elapsed > 0:
            return max(0.0, (last - first) / elapsed)
        return 0.0

    def acked_within(self, share: float) -> float | None:
        """The time within which this share of recent frames was acknowledged."""
        held = figures(self.now, "publisher").get("ack_lag_seconds")
        before = figures(self.bodies[0], "publisher").get("ack_lag_seconds")
        if (
            isinstance(held, list)
            and isinstance(before, list)
            and len(self.bodies) > 1
            and sum(held) >= sum(before)
        ):
            held = [one - other for one, other in zip(held, before, strict=True)]
        return quantile("ack_lag_seconds", held, share)


def figures(body: dict[str, Any], service: str) -> dict[str, Any]:
    found: dict[str, Any] = body["services"].get(service, {}).get("figures", {})
    return found


def _number(stats: dict[str, Any], key: str, series: str | None) -> float:
    if series is None:
        value = stats.get(key, 0)
    else:
        value = stats.get(key, {}).get(series, 0)
    if isinstance(value, int | float):
        return float(value)
    return 0.0


def screen(past: Past, trouble: str = "") -> RenderableType:
    """The whole screen."""
    parts: list[RenderableType] = [
        _head(past, trouble),
        _stream(past),
        _slot(past),
        _services(past),
    ]
    for part in (_snapshots(past), _consumers(past), _tables(past), _errors(past)):
        if part is not None:
            parts += [Text(""), part]
    return Group(*parts)


def _head(past: Past, trouble: str) -> Text:
    body = past.now
    connected = bool(body["is_connected"])
    paused = figures(body, "publisher").get("paused")
    state = str(body["status"])
    style = "red"
    if paused:
        state = "paused"
        style = "yellow"
    elif connected:
        style = "green"
    text = Text.assemble(
        (f"{body['source']} ", "bold"),
        (state, style),
        (f"   up {span(body['uptime_seconds'])}   LSN {body['current_lsn']}", "dim"),
    )
    if trouble:
        text.append(f"\n{trouble}", style="red")
    for part in ("postgres", "nats"):
        if not body[part].get("reachable", body[part].get("connected")):
            text.append(f"\n{part}: {body[part].get('reason') or 'not connected'}", style="red")
    return text.append("\n")


def _stream(past: Past) -> Table:
    table = _grid()
    rate = sum(list(past.rates)[-3:]) / max(1, len(list(past.rates)[-3:]))
    lag_s = figures(past.now, "publisher").get("lag_seconds") or 0
    table.add_row(
        "events/s",
        f"{rate:,.0f}",
        Text(spark(past.rates), "cyan"),
        f"{past.now['cdc_events_published']:,} in all",
    )
    waits = f"oldest waits {seconds(lag_s)}" if lag_s else "nothing waits"
    table.add_row("lag", size(past.now["wal_lag_bytes"]), Text(spark(past.lags), "cyan"), waits)
    p50 = past.acked_within(0.5)
    p99 = past.acked_within(0.99)
    mode = next(
        (mode for mode, on in figures(past.now, "publisher").get("ingest_mode", {}).items() if on),
        "",
    )
    table.add_row("commit→ack", seconds(p50), f"p99 {seconds(p99)}", mode and f"ingest {mode}")
    return table


def _slot(past: Past) -> Text:
    slot = past.now["slot"]
    if slot is None:
        return Text(f"\nslot: {past.now['postgres']['reason'] or 'not seen yet'}\n", style="yellow")
    text = Text("\nslot  ", style="dim")
    text.append(
        "active" if slot["active"] else "not read", style="green" if slot["active"] else "yellow"
    )
    text.append(f"   {slot['wal_status']}", style=_ALARMS.get(slot["alarm"], ""))
    text.append(
        f"   keeps {size(slot['retained_bytes'])}   WAL {size(slot['wal_rate_bytes'])}/s",
        style="default",
    )
    if slot["safe_bytes"] is not None:
        text.append(f"   room {size(slot['safe_bytes'])}")
    if slot["loss_s"] is not None:
        text.append(f"   lost in about {span(slot['loss_s'])}", style="red")
    return text.append("\n")


def _services(past: Past) -> Table:
    table = _table("service", "state", "memory", "cpu", "")
    for name, service in past.now["services"].items():
        stats = service["figures"]
        if service["instances"] < 2:
            state = service["state"]
        else:
            state = f"{service['state']} ({service['instances']})"
        reasons = "; ".join(service["reasons"].values())
        table.add_row(
            name,
            Text(state, STYLES.get(service["state"], "")),
            size(stats["memory_bytes"]) if "memory_bytes" in stats else "",
            f"{past.per_second(name, 'cpu_seconds') * 100:.0f} %",
            Text(
                reasons or f"up {span(stats.get('uptime_seconds', 0))}",
                "yellow" if reasons else "dim",
            ),
        )
    return table


def _snapshots(past: Past) -> Table | None:
    stats = figures(past.now, "snapshot-responder")
    running = stats.get("snapshot_progress_rows") or {}
    if not running:
        return None
    table = _table("snapshot", "", "rows", "of about", "rows/s")
    for token, rows in running.items():
        whole = stats.get("snapshot_estimated_rows", {}).get(token) or rows or 1
        pace = past.per_second("snapshot-responder", "snapshot_progress_rows", token)
        bar = ProgressBar(total=whole, completed=rows, width=24)
        table.add_row(token, bar, f"{rows:,.0f}", f"{whole:,.0f}", f"{pace:,.0f}")
    return table


def _consumers(past: Past) -> Table | None:
    if not past.now["consumers"]:
        return None
    table = _table("durable consumer", "behind", "lag", "of its retention left", "")
    for view in past.now["consumers"]:
        if view["left_ratio"] < RATIO_MIN:
            style = "red"
        elif view["left_ratio"] < RATIO_LOW:
            style = "yellow"
        else:
            style = ""
        lost = f"lost {view['lost']:,} messages" if view["lost"] else ""
        left = f"{view['left_ratio']:.0%}" + (
            f", {span(view['left_s'])}" if view["left_s"] is not None else ""
        )
        table.add_row(
            view["name"],
            f"{view['pending']:,}",
            seconds(view["lag_s"]),
            Text(left, style),
            Text(lost, "red"),
        )
    return table


def _tables(past: Past) -> Table | None:
    sums: dict[str, tuple[float, float]] = {}
    for series, events in (figures(past.now, "publisher").get("table_events") or {}).items():
        token = series.split(" ")[0]
        rate, total = sums.get(token, (0.0, 0.0))
        sums[token] = (rate + past.per_second("publisher", "table_events", series), total + events)
    if not sums:
        return None
    table = _table("table", "events/s", "events", "", "")
    for token, (rate, total) in sorted(sums.items(), key=lambda item: item[1], reverse=True)[
        :TABLES_MAX
    ]:
        table.add_row(token, f"{rate:,.0f}", f"{total:,.0f}", "", "")
    return table


def _errors(past: Past) -> Table | None:
    found = [
        (times, kind, name)
        for name, service in past.now["services"].items()
        for kind, times in (service["figures"].get("errors") or {}).items()
    ]
    if not found:
        return None
    table = _table("told", "times", "by", "", "")
    for times, kind, name in sorted(found, key=lambda one: ("warning" in one[1], -one[0]))[
        :ERRORS_MAX
    ]:
        level, _, event = kind.partition(" ")
        table.add_row(
            Text(event, "yellow" if level == "warning" else "red"), f"{times:,.0f}", name, "", ""
        )
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    table.add_column(justify="right", min_width=10)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(first, min_width=20, no_wrap=True)
    for other in others:
        table.add_column(other)
    return table


def spark(values: deque[float]) -> str:
    """A line of bars; the highest value has the tallest."""
    top = max(values, default=0) or 1
    return "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] for value in values)


def seconds(value: float | None) -> str:
    """A short duration, abbreviated."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.1f} ms"
    if value < 60:
        return f"{value:.1f} s"
    return span(value)
