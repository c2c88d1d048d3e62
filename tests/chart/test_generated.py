"""The committed files that programs generate are current: dashboards, the chart's schema, README
and copies.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from headrace.metrics.catalogue import FIGURES

ROOT = Path(__file__).parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"


def script(path: str) -> ModuleType:
    """A script of deploy/, which is no part of the distribution."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by its name, and a script imports modules next to it.
    sys.modules[spec.name] = module
    sys.path.insert(0, str((ROOT / path).parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
        del sys.modules[spec.name]
    return module


def test_the_committed_dashboards_are_what_the_code_makes() -> None:
    code = script("deploy/grafana/dashboards.py")
    made = {code.path(each): code.rendered(each) for each in code.DASHBOARDS}
    assert {path: path.read_text() for path in sorted(DASHBOARDS.glob("*.json"))} == made


def test_every_metric_on_a_dashboard_is_one_of_ours() -> None:
    """A counter that has not counted yet has no series: only its declaration tells a wrong name."""
    suffixes = {"histogram": ("_bucket", "_sum", "_count")}
    ours = {
        figure.metric + suffix for figure in FIGURES for suffix in suffixes.get(figure.kind, ("",))
    }
    named = {
        name
        for path in DASHBOARDS.glob("*.json")
        for name in re.findall(r"headrace_\w+", path.read_text())
    }
    assert named - ours == set()


def test_no_dashboard_lays_a_panel_over_another() -> None:
    code = script("deploy/grafana/dashboards.py")
    for dashboard in code.DASHBOARDS:
        places = [place for _, place in code._placed(dashboard.panels)]
        cells = [
            (x, y)
            for p in places
            for x in range(p["x"], p["x"] + p["w"])
            for y in range(p["y"], p["y"] + p["h"])
        ]
        assert len(cells) == len(set(cells)), dashboard.title
        assert max(x for x, _ in cells) < 24, dashboard.title


def test_the_charts_schema_and_readme_are_what_its_values_say() -> None:
    code = script("deploy/helm/generate.py")
    assert (code.CHART / "values.schema.json").read_text() == code.values_schema(), (
        "run ./taskw chart"
    )
    assert (code.CHART / "README.md").read_text() == code.readme(), "run ./taskw chart"


def test_the_chart_ships_the_alerts_and_dashboards_of_this_version() -> None:
    code = script("deploy/helm/generate.py")
    copies = code.shipped()
    assert {copy.name for copy in code.CHART.glob("files/dashboards/*")} == {
        p.name for p in DASHBOARDS.glob("*.json")
    }
    assert [
        str(copy) for copy, of in copies.items() if copy.read_bytes() != of.read_bytes()
    ] == [], "run ./taskw chart"


def test_every_value_of_the_chart_says_what_it_is() -> None:
    code = script("deploy/helm/generate.py")
    silent = [
        row for row in code.readme().splitlines() if row.startswith("| `") and row.endswith("|  |")
    ]
    named = (
        "nats.secrets.",
        "services.",
        "resources",
        "image.repository",
        "repository",
        "postgres.port",
        "nodeSelector",
    )
    assert [row for row in silent if not any(name in row for name in named)] == []
