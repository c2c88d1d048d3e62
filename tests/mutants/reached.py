"""A pytest plugin that notes which functions of Headrace each test reaches in its own process.

Written as JSON to `HEADRACE_REACHED`: for each function (`path:line` of its definition) the tests,
and for each test how long it took.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_OURS = (str(_ROOT / "libs"), str(_ROOT / "services"))


class Reached:
    def __init__(self) -> None:
        self._tests: dict[str, set[str]] = defaultdict(set)
        self._took: dict[str, float] = {}
        self._codes: set[Any] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._codes.clear()
        # asyncio.to_thread runs some of it elsewhere.
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            for code in self._codes:
                path = Path(code.co_filename).relative_to(_ROOT)
                self._tests[f"{path}:{code.co_firstlineno}"].add(item.nodeid)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OURS):
            self._codes.add(frame.f_code)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] = self._took.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        tests = {function: sorted(reached) for function, reached in self._tests.items()}
        Path(os.environ["HEADRACE_REACHED"]).write_text(
            json.dumps({"tests": tests, "took": self._took})
        )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Reached(), "reached")
