"""The output of `headrace up`: steps at startup, sample changes, a table, then only important
events.

Plain text without colors or spinners if the output is not a terminal; then nothing is cut or
wrapped.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from headrace.cli.session import Screen
from headrace.cli.terminal import PLAIN_WIDTH, Console
from headrace.consumer import Event
from headrace.supervisor.line import Line

_NAME_WIDTH = 18
_COLOURS = {"warning": "yellow", "error": "red", "critical": "red bold"}
# A reason that persists is shown again after this time.
_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A line of the table."""

    name: str
    where: str
    pid: int | None
    note: str


class CreatedObjects(Screen):
    """Collects init's output, which has a line for each object that it finds or creates."""

    def __init__(self) -> None:
        super().__init__()
        self.things: list[str] = []

    def title(self, text: str) -> None:
        """Headings are for the long form."""

    def made(self, kind: str, name: str, what: str) -> None:  # noqa: ARG002  # a Screen has it
        self.things.append(f"{kind} {name}")

    def kept(self, kind: str, name: str, what: str) -> None:
        """Nothing new."""


class View:
    """The user's terminal or file. Also the supervisor's listener."""

    def __init__(self, *, verbose: bool) -> None:
        self._console = Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH)
        self._verbose = verbose
        # Services come and go while the suite starts and stops: their warnings then are in their
        # logs.
        self.quiet = True
        self._told: dict[tuple[str, str], float] = {}

    @contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Show the current step while it lasts, on a terminal only."""
        if self._console.is_terminal:
            with self._console.status(f"{doing} …"):
                yield
        else:
            yield

    def done(self, text: str) -> None:
        """A completed step."""
        self._beside(Text("✓ ", "green"), Text(text))

    def line(self, service: str, line: Line) -> None:
        """A service's log line: all of them with --verbose, else only grave ones."""
        if not self._verbose and (
            self.quiet or not line.grave or self._is_told(service, line.summary)
        ):
            return
        name = Text(f"{service:<{_NAME_WIDTH}} │ ", style="cyan")
        self._console.print(
            name.append(line.summary, style=_COLOURS.get(line.level, "dim")), soft_wrap=True
        )

    def _is_told(self, service: str, summary: str) -> bool:
        """Whether it was shown a moment ago: services log at each attempt why they wait."""
        now = time.monotonic()
        self._told = {one: at for one, at in self._told.items() if now - at < _AGAIN_S}
        return self._told.setdefault((service, summary), now) != now

    def news(self, text: str) -> None:
        """An action of the supervisor or of the shutdown."""
        self._console.print(
            Text.assemble((f"{'up':<{_NAME_WIDTH}} │ ", "cyan"), text), soft_wrap=True
        )

    def say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)

    def changes(self, events: Sequence[Event]) -> None:
        """The sample changes: subject, operation, data."""
        for event in events:
            data = {name: value for name, value in event.data.items() if value is not None}
            head = Text.assemble("  ", (f"{event.subject:<26}", "cyan"), f"  {event.operation}  ")
            self._beside(head, Text(json.dumps(data, ensure_ascii=False, default=str), style="dim"))

    def _beside(self, head: Text, text: Text) -> None:
        """Text that is too long for the terminal continues below its own beginning; elsewhere it
        stays one line.
        """
        if not self._console.is_terminal:
            self._console.print(head.append_text(text), soft_wrap=True)
            return
        columns = Table.grid()
        columns.add_column(no_wrap=True)
        columns.add_column(overflow="fold")
        columns.add_row(head, text)
        self._console.print(columns)

    def table(self, rows: Sequence[ServiceRow], hints: Sequence[tuple[str, str]]) -> None:
        """Show the addresses of all processes, and what to do next."""
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for title in ("Running", "Where", "Process", ""):
            table.add_column(title, no_wrap=title != "", overflow="fold")
        for row in rows:
            pid = "yours" if row.pid is None else str(row.pid)
            table.add_row(Text(row.name, style="bold"), row.where, pid, Text(row.note, style="dim"))
        self._console.print()
        self._console.print(table)
        self._console.print()
        for name, hint in hints:
            # Outside the table's columns: a wrapped command can't be copied.
            self._console.print(Text.assemble((f"{name:<10}", "bold"), hint), soft_wrap=True)
        self._console.print()
