"""The console for commands: text from outside is shown, and never executed or parsed as markup."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich import console as rich_console
from rich.segment import Segment

from headrace.terminal.text import plain

PLAIN_WIDTH = 200


class Console(rich_console.Console):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})
        if not self.is_terminal and "COLUMNS" not in os.environ and options.get("width") is None:
            # Rich assumes 80 columns without a terminal: a table in a file or a pipe would be
            # folded for nobody.
            self.width = PLAIN_WIDTH

    def render(
        self,
        renderable: rich_console.RenderableType,
        options: rich_console.ConsoleOptions | None = None,
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # Rich's own terminal commands are separate from text.
            yield segment if segment.control else segment._replace(text=plain(segment.text))
