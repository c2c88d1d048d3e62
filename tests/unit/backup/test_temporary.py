"""Temporary folders of restores, in real processes that are killed or still run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.backup.temporary import TemporaryFolder

PROGRAM = """
import sys
from pathlib import Path
from headrace.backup.temporary import TemporaryFolder
folder = TemporaryFolder(Path(sys.argv[1]))
(folder.path / "cluster").mkdir()
(folder.path / "cluster" / "file").write_text("rows")
print(folder.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a folder, and the folder."""
    command = [sys.executable, "-c", PROGRAM, str(parent)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_the_next_folder_removes_what_a_killed_process_left_and_nothing_else(
    tmp_path: Path,
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    (others / "file").write_text("kept")
    with holder(tmp_path) as (running, held), holder(tmp_path) as (killed, left):
        # Names with the prefix that no restore made.
        prefix = left.name[: left.name.rindex("-") + 1]
        (tmp_path / f"{prefix}link").symlink_to(others)
        (tmp_path / f"{prefix}file").write_text("kept")
        killed.kill()
        killed.wait()
        assert (left / "cluster" / "file").exists()
        folder = TemporaryFolder(tmp_path)
        assert not left.exists()
        assert running.poll() is None
        assert (held / "cluster" / "file").read_text() == "rows"
        assert (others / "file").read_text() == "kept"
        assert (tmp_path / f"{prefix}file").read_text() == "kept"
    assert list(folder.path.iterdir()) == []
    folder.remove()
    folder.remove()
    assert not folder.path.exists()


def test_the_folders_of_one_process_do_not_remove_each_other(tmp_path: Path) -> None:
    first, second = TemporaryFolder(tmp_path), TemporaryFolder(tmp_path)
    assert first.path.exists()
    for folder in (first, second):
        folder.remove()
    assert list(tmp_path.iterdir()) == []
