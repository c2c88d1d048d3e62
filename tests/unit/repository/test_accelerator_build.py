"""The accelerator is built where that is possible, and is absent without harm elsewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

ROOT = Path(__file__).parents[3]


def hook() -> ModuleType:
    spec = spec_from_file_location("hook", ROOT / "deploy/release/accelerator.py")
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A source tree with an extension of an earlier version."""
    source = tmp_path / hook().SOURCE
    source.parent.mkdir(parents=True)
    shutil.copy(ROOT / hook().SOURCE, source)
    (tmp_path / hook().BUILT).write_bytes(b"older")
    return tmp_path


def build(checkout: Path) -> dict[str, Any]:
    """The hook's additions to the wheel's metadata."""
    data: dict[str, Any] = {"artifacts": []}
    made = hook().AcceleratorBuild(str(checkout), {}, None, None, "", "wheel", mock.Mock())
    made.initialize("standard", data)
    return data


@pytest.mark.parametrize("compiler", ["a-compiler-that-is-not-there", "false", "true", '"cc'])
def test_without_a_compiler_the_wheel_is_for_every_platform_and_nothing_old_stays(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build(checkout) == {"artifacts": []}
    assert not (checkout / hook().BUILT).exists()
    monkeypatch.setenv("BUILD_ACCELERATOR", "required")
    with pytest.raises(SystemExit, match="can't be built: the C compiler"):
        build(checkout)


def test_a_source_tree_that_is_only_read_is_left_as_it_is(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / hook().BUILT).unlink()
    refused = mock.Mock(side_effect=OSError(30, "Read-only file system"))
    for name in ("unlink", "replace"):
        monkeypatch.setattr(Path, name, refused)
    assert build(checkout) == {"artifacts": []}
    assert refused.called


def test_a_wheel_for_every_platform_is_built_on_request(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUILD_ACCELERATOR", "off")
    assert build(checkout) == {"artifacts": []}


def test_where_it_is_absent_or_off_or_of_another_version_everything_runs_in_python(
    tmp_path: Path,
) -> None:
    package = tmp_path / "headrace/accelerator"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "libs/headrace/accelerator/__init__.py", package)
    look = "from headrace.accelerator import native; print(native)"

    def found() -> str:
        command = [sys.executable, "-S", "-c", look]
        ended = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True, env={}
        )
        return ended.stdout.strip()

    assert found() == "None"
    for other in ("", "INTERFACE = 0"):
        (package / "_native.py").write_text(other)
        assert found() == "None"
    (package / "_native.py").write_text("raise ImportError('HEADRACE_ACCELERATOR is off')")
    assert found() == "None"
