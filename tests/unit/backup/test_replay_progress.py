"""The progress of a replay is read from the server's log, in PostgreSQL's own words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headrace.backup import recovery

LOG = """
LOG:  starting archive recovery
LOG:  redo in progress, elapsed time: 2.00 s, current LSN: 0/5000028
LOG:  redo in progress, elapsed time: 4.01 s, current LSN: 1/A0000F8
"""


def test_the_last_lsn_is_told_while_the_replay_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_PROGRESS_S", 0.01)
    seen: list[int] = []
    enough = threading.Event()

    def tell(lsn: int) -> None:
        seen.append(lsn)
        enough.set()

    log = tmp_path / "server.log"
    with recovery._watched(log, tell):
        log.write_text(LOG)
        assert enough.wait(30)
    assert set(seen) <= {(1 << 32) + 0xA0000F8}
