"""Resources that a failed test leaves open are not blamed on the next test.

pytest keeps a failure's traceback, and with it the connections and processes of its frames. Their
warnings would come when the garbage collector runs, which is in another test, and fail that.
"""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Generator

import pytest

_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.excinfo is not None:
        item.stash[_FAILED] = True
        _clear(call.excinfo.value, set())
    # Its fixtures have been torn down, and its loop is closed.
    if report.when == "teardown" and item.stash.get(_FAILED, False):
        _collect()
    return report


def _clear(error: BaseException | None, seen: set[int]) -> None:
    """Drop the locals of the error's frames, and of those that led to it."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    traceback.clear_frames(error.__traceback__)
    for frame, _ in traceback.walk_tb(error.__traceback__):
        # Asking again updates the dictionary that pytest was given when it showed the failure.
        assert frame.f_locals is not None
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    for one in (error.__cause__, error.__context__, *members):
        _clear(one, seen)


def _collect() -> None:
    report = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = report
