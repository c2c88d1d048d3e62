"""`./taskw` reports why it can't install, and what to do. The tests download nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DF = """#!/bin/sh
echo 'Filesystem     1024-blocks     Used Available Capacity Mounted on'
echo '/dev/mapper/a b 100000000 90000000   {free} 90% /home'
"""
# It makes environments whose uv does what the test says.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    cp "$(dirname "$0")/uv" "$3/bin/uv"
    exit 0
fi
# uv itself is installed by pip; where pip is to install everything, it can't.
case "$*" in *--disable-pip-version-check*) exit 1 ;; esac
[ "$1" != -m ] || exit 0
exec {python} "$@"
"""
FULL = """#!/bin/sh
echo 'error: Failed to install: pyspark-4.0.0 (pyspark==4.0.0)' >&2
echo '  Caused by: failed to write to file: No space left on device (os error 28)' >&2
exit 2
"""


class Clone:
    """The files that `taskw` needs, and a PATH whose tools the test chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "clone"
        self.bin = folder / "bin"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in ("taskw", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, self.folder / name)
        self.tool("df", DF.format(free=50_000_000))
        # The first name that taskw looks for.
        self.tool("python3.14", PYTHON.format(python=sys.executable))
        self.tool("uv", FULL)

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, user: str | None = None) -> subprocess.Popen[str]:
        # If the tests run in the background, SIGINT is ignored, and a shell can't trap what was
        # ignored when it began. A signal that is handled here is not ignored there.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                ["./taskw", "--list"],
                cwd=self.folder,
                env={**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                user=user,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    def fails(self, user: str | None = None) -> str:
        process = self.start(user)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 1, said
        return said


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_too_little_room_is_said_before_anything_is_made(clone: Clone) -> None:
    clone.tool("df", DF.format(free=60_000))
    assert clone.fails() == (
        f"taskw: the installation needs 2 GB, but the disk of {clone.folder} has only 60 MB left. "
        "Free some space, or clone elsewhere.\n"
    )
    assert not (clone.folder / ".venv").exists()


def test_a_folder_that_can_not_be_written_is_said_first() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        clone = Clone(folder)
        clone.folder.chmod(0o555)
        # To root no folder is closed.
        said = clone.fails(user="nobody" if os.geteuid() == 0 else None)
        assert (
            said
            == f"taskw: can't write to {clone.folder}. Clone Headrace into a folder that you own.\n"
        )
        clone.folder.chmod(0o755)


def test_a_disk_that_is_full_in_the_middle_is_named_and_pip_is_not_tried(clone: Clone) -> None:
    said = clone.fails()
    assert (
        "taskw: the disk is full: Caused by: failed to write to file: No space left on device (os error 28)."
        in said
    )
    assert "pip" not in said.replace("pip's", "")


def test_what_uv_said_last_stands_before_pip_is_tried(clone: Clone) -> None:
    clone.tool("uv", "#!/bin/sh\necho 'error: no such index' >&2\necho >&2\nexit 2\n")
    said = clone.fails()
    assert (
        "taskw: uv could not install the packages: error: no such index\ntaskw: Trying pip, which takes longer.\n"
        in said
    )


def test_an_install_that_is_interrupted_says_so(clone: Clone) -> None:
    clone.tool("uv", f"#!/bin/sh\ntouch {clone.bin}/began\nexec sleep 60\n")
    process = clone.start()
    while not (clone.bin / "began").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("taskw: interrupted; run it again.\n")
