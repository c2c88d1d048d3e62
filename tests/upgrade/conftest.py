"""The code of an earlier revision, which runs next to this one's.

The tests need the repository's history, so only `./taskw test:upgrade` collects them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chart.composition import ROOT

FROM = os.environ.get("HEADRACE_UPGRADE_FROM")
# Without a release, as old as this.
COMMITS = 100

collect_ignore_glob = [] if FROM else ["test_*.py"]


def git(*arguments: str) -> bytes:
    command = [str(shutil.which("git")), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr.decode()}"
    return done.stdout


def revision() -> str:
    """The revision that FROM names: of `last`, the last release, or else `COMMITS` ago."""
    name = str(FROM)
    if name == "last":
        tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-creatordate").decode()
        name = tags.split()[0] if tags.split() else f"HEAD~{COMMITS}"
    return git("rev-parse", "--short", f"{name}^{{commit}}").decode().strip()


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which a command runs the earlier revision's code."""
    commit = revision()
    folder = tmp_path_factory.mktemp(commit)
    archive = git("archive", commit, "libs", "services")
    subprocess.run([str(shutil.which("tar")), "-xC", folder], input=archive, check=True)
    environment = {"PYTHONPATH": f"{folder / 'libs'}:{folder / 'services'}"}
    program = "import headrace.publisher.service as p, headrace.bus.frame as f\n"
    program += "print(p.__file__, f.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert [Path(name).is_relative_to(folder) for name in found] == [True, True], found
    print(f"\nfrom {commit} to the present code and back", flush=True)
    return environment
