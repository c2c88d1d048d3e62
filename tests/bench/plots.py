"""Pictures of a run for the docs: what an event costs in each process, and memory over time. SVG,
by hand.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from tests.bench.result import Figure

FOLDER = Path(__file__).parents[2] / "docs/pictures"
_COLOURS = {
    "walsender": "#8da0b3",
    "wal-reader": "#2f6f9f",
    "publisher": "#e07a3f",
    "nats-server": "#3f9f6f",
}
_STYLE = "font-family='sans-serif' font-size='13' fill='#445'"
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 820, 250, 60, 20, 10
_TOP = 50
_HEIGHT = 260


def draw(figures: list[Figure]) -> None:
    """Write what there are figures for."""
    costs = [figure for figure in figures if "publisher" in figure.cpu_us]
    if costs:
        (FOLDER / "performance-cpu.svg").write_text(
            _bars("CPU µs for each event, by process", costs)
        )
    longest = max(
        figures,
        key=lambda figure: max((at for at, _ in _points(figure)), default=0.0),
        default=None,
    )
    if longest is not None and _points(longest):
        (FOLDER / "performance-memory.svg").write_text(
            _lines(f"Memory over time: {longest.name}", longest)
        )


def _points(figure: Figure) -> list[tuple[float, float]]:
    return [point for series in figure.rss_series.values() for point in series]


def _picture(height: float, title: str, body: list[str]) -> str:
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height:.0f}' role='img'>"
    )
    back = f"<rect width='{_WIDTH}' height='{height:.0f}' fill='#fff'/>"
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", back, _text(16, 22, title), *body, "</svg>", ""]
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {_STYLE}>{escape(text)}</text>"


def _legend(names: list[str]) -> list[str]:
    parts = []
    for index, name in enumerate(names):
        x = _LEFT + index * 130
        parts.append(f"<rect x='{x}' y='32' width='11' height='11' fill='{_COLOURS[name]}'/>")
        parts.append(_text(x + 16, 42, name))
    return parts


def _bars(title: str, figures: list[Figure]) -> str:
    names = [name for name in _COLOURS if any(name in figure.cpu_us for figure in figures)]
    scale = (_WIDTH - _LEFT - _RIGHT) / max(sum(figure.cpu_us.values()) for figure in figures)
    body, y = _legend(names), float(_TOP + 8)
    for figure in figures:
        x = float(_LEFT)
        body.append(_text(_LEFT - 8, y + 15, figure.name, "end"))
        for name in names:
            width = figure.cpu_us.get(name, 0.0) * scale
            body.append(
                f"<rect x='{x:.1f}' y='{y:.0f}' width='{width:.1f}' height='{_BAR}' "
                f"fill='{_COLOURS[name]}'/>"
            )
            x += width
        body.append(_text(x + 6, y + 15, f"{sum(figure.cpu_us.values()):.1f}"))
        y += _BAR + _GAP
    return _picture(y + 8, title, body)


def _lines(title: str, figure: Figure) -> str:
    points = _points(figure)
    seconds, most = max(at for at, _ in points) or 1.0, max(64.0, *(mib for _, mib in points)) * 1.1
    across, down = (_WIDTH - 120) / seconds, (_HEIGHT - 100) / most
    bottom = _HEIGHT - 40
    body = _legend(list(figure.rss_series))
    for level in (0, 32, 64):
        y = bottom - level * down
        body.append(f"<line x1='60' x2='{_WIDTH - 60}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>")
        body.append(_text(52, y + 4, f"{level} MiB", "end"))
    for name, series in figure.rss_series.items():
        path = " ".join(f"{60 + at * across:.1f},{bottom - mib * down:.1f}" for at, mib in series)
        body.append(
            f"<polyline points='{path}' fill='none' stroke='{_COLOURS[name]}' stroke-width='2'/>"
        )
    body.append(_text(_WIDTH - 60, bottom + 20, f"{seconds:.0f} s", "end"))
    return _picture(_HEIGHT, title, body)
