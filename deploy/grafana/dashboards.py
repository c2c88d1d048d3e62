"""Renders the Grafana dashboards, whose panels are in the package `panels`.

Promises the same bytes for the same code, so that a test can hold the committed JSON to it, and
nothing that Grafana's provisioning would have to fill in but the data source. Run as
`python dashboards.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from panels import (
    archive,
    audit,
    backup,
    console,
    jetstream,
    lake,
    mirror,
    overview,
    publisher,
    schema_publisher,
    sinks,
    slot,
    snapshots,
    sql,
    telemetry,
    wal_reader,
)
from panels.panel import Dashboard, Panel

FOLDER = Path(__file__).with_name("dashboards")
SOURCE = {"type": "prometheus", "uid": "headrace-prometheus"}
_WIDTH, _HEIGHT = 24, 8

DASHBOARDS = (
    overview.DASHBOARD,
    wal_reader.DASHBOARD,
    publisher.DASHBOARD,
    snapshots.DASHBOARD,
    schema_publisher.DASHBOARD,
    telemetry.DASHBOARD,
    slot.DASHBOARD,
    jetstream.DASHBOARD,
    archive.DASHBOARD,
    lake.DASHBOARD,
    sql.DASHBOARD,
    sinks.DASHBOARD,
    backup.DASHBOARD,
    audit.DASHBOARD,
    mirror.DASHBOARD,
    console.DASHBOARD,
)


def _placed(panels: tuple[Panel, ...]) -> Iterator[tuple[Panel, dict[str, int]]]:
    """Places panels from left to right, row by row."""
    x = y = row = 0
    for panel in panels:
        height = 4 if panel.kind == "stat" else _HEIGHT
        if x + panel.width > _WIDTH:
            x, y, row = 0, y + row, 0
        yield panel, {"x": x, "y": y, "w": panel.width, "h": height}
        x, row = x + panel.width, max(row, height)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "expr": query,
            "legendFormat": legend,
            "datasource": SOURCE,
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"showLegend": True, "displayMode": "list"}}
        if panel.kind == "timeseries"
        else {},
        "targets": targets,
    }


def rendered(dashboard: Dashboard) -> str:
    """The JSON that Grafana reads."""
    panels = [_panel(number, *placed) for number, placed in enumerate(_placed(dashboard.panels), 1)]
    variable = {
        "name": "source",
        "label": "Slot",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": "label_values(headrace_up, source)", "refId": "source"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }
    body = {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["headrace"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [
            {"type": "dashboards", "tags": ["headrace"], "asDropdown": True, "title": "Headrace"}
        ],
        "templating": {"list": [variable]},
        "panels": panels,
    }
    return json.dumps(body, indent=2, ensure_ascii=False) + "\n"


def path(dashboard: Dashboard) -> Path:
    return FOLDER / f"{dashboard.uid.removeprefix('headrace-')}.json"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for dashboard in DASHBOARDS:
        path(dashboard).write_text(rendered(dashboard))


if __name__ == "__main__":
    main()
