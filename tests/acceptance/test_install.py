"""The wheel is complete, and its `headrace` runs: installed, and by uvx and pipx without installing it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


BIN = Path(sys.executable).parent
PIPX = "pipx==1.18.4"


def run(*command: str | Path, cwd: Path, **more: str) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    } | more
    ended = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("install")
    build = ("hatchling", "build", "--target", "wheel", "--directory", folder)
    run(sys.executable, "-m", *build, cwd=ROOT)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def clean_venv(wheel: Path) -> Path:
    """A virtual environment with Headrace from its wheel, and the dependencies of this one: no
    index is asked.
    """
    folder = wheel.parent
    venv = folder / "venv"
    uv = BIN / "uv"
    run(uv, "venv", "--quiet", "--python", sys.executable, venv, cwd=folder)
    run(
        uv,
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        venv / "bin/python",
        wheel,
        cwd=folder,
    )
    # A path file of a folder that a path file adds isn't read: so this checkout, installed here
    # editable, isn't seen.
    [site] = (venv / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    return venv


def test_the_installed_command_explains_itself(clean_venv: Path) -> None:
    shown = run(clean_venv / "bin/headrace", "--help", cwd=clean_venv)
    for command in (
        "up",
        "wal-reader",
        "publisher",
        "snapshot-responder",
        "schema-publisher",
        "telemetry",
    ):
        assert command in shown


def test_it_runs_from_what_was_installed_and_not_from_a_checkout(clean_venv: Path) -> None:
    program = "import headrace.embedded.process as p, headrace.cli.entry as m; print(p.__file__); print(m.__file__)"
    for path in run(clean_venv / "bin/python", "-c", program, cwd=clean_venv).split():
        assert Path(path).is_relative_to(clean_venv)


def test_every_file_of_both_roots_is_in_it(clean_venv: Path) -> None:
    [installed] = (clean_venv / "lib").glob("python*/site-packages/headrace")
    for root in (ROOT / "libs/headrace", ROOT / "services/headrace"):
        for path in root.rglob("*.py"):
            assert (installed / path.relative_to(root)).is_file(), path
    assert (installed / "py.typed").is_file()


def test_up_shows_changes_from_the_wheel_in_an_empty_folder(
    clean_venv: Path, tmp_path: Path
) -> None:
    shown = run(clean_venv / "bin/headrace", "up", "--once", cwd=tmp_path)
    assert "cdc.headrace_demo.insert" in shown
    assert "Up after" in shown
    assert str(ROOT) not in shown


def test_uvx_runs_it_with_embedded_servers_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    source = f"headrace[embedded] @ {wheel.as_uri()}"
    shown = run(BIN / "uvx", "--from", source, "headrace", "up", "--once", cwd=tmp_path)
    assert "cdc.headrace_demo.insert" in shown
    assert str(ROOT) not in shown


@pytest.mark.slow
def test_pipx_runs_it(wheel: Path, tmp_path: Path) -> None:
    source = f"headrace @ {wheel.as_uri()}"
    pipx = (BIN / "uvx", PIPX, "run", "--spec", source)
    shown = run(*pipx, "headrace", "--version", cwd=tmp_path, PIPX_HOME=str(tmp_path / "pipx"))
    assert f"headrace {wheel.name.split('-')[1]}" in shown
