"""A release has all its files, and what a forge shows and runs refers to things that exist."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[3]


def loaded(name: str) -> ModuleType:
    """A script of `deploy/release`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"deploy/release/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = loaded("build")
package_page = loaded("package_page")
README = (ROOT / "README.md").read_text()
HOST = "https://forge.example/headrace"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def targets(page: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", page)


def test_an_index_without_a_repository_shows_no_link_that_leads_nowhere() -> None:
    page = package_page.page(README, "", "1.2.3")
    assert all(target.startswith(("https://", "#")) for target in targets(page))
    assert "![" not in page
    assert "full comparison" in page
    assert package_page.urls("", "1.2.3") == {}


def test_every_relative_link_becomes_one_into_the_released_files() -> None:
    relative = [target for target in targets(README) if not target.startswith(("https://", "#"))]
    page = package_page.page(README, HOST, "1.2.3")
    assert len(relative) > 10
    for target in relative:
        assert (ROOT / target.partition("#")[0]).exists(), target
        assert re.search(rf"\]\({HOST}/(blob|raw)/v1\.2\.3/{re.escape(target)}\)", page), target
    assert f"({HOST}/raw/v1.2.3/docs/pictures/console-overview.png)" in page


@pytest.mark.skipif(
    not Path(sys.executable).with_name("helm").exists(), reason="helm is not in the lock here"
)
def test_a_release_has_every_file_and_their_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "FOLDER", tmp_path / "release")
    monkeypatch.setenv("HEADRACE_REPOSITORY_URL", HOST)
    assert build.main() == 0
    files = {path.name: path for path in (tmp_path / "release").iterdir()}
    kinds = sorted(re.sub(r"\d+\.\d+\.\d+", "X", name) for name in files)
    assert kinds == [
        "NOTES.md",
        "SHA256SUMS",
        "headrace-X-py3-none-any.whl",
        "headrace-X.cdx.json",
        "headrace-X.tar.gz",
        "headrace-X.tgz",
        "headrace-archive-X.cdx.json",
        "headrace-lake-X.cdx.json",
        "headrace-spark-X.cdx.json",
    ]
    lines = [line.split("  ") for line in files["SHA256SUMS"].read_text().splitlines()]
    sums = {name: checksum for checksum, name in lines}
    assert sums.keys() == files.keys() - {"SHA256SUMS"}
    for name, checksum in sums.items():
        assert hashlib.sha256(files[name].read_bytes()).hexdigest() == checksum
    wheel = next(path for name, path in files.items() if name.endswith(".whl"))
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith("/METADATA")]
        text = opened.read(metadata).decode()
    assert f"Project-URL: Homepage, {HOST}" in text
    assert "# Headrace" in text
    chart = next(path for name, path in files.items() if name.endswith(".tgz"))
    with tarfile.open(chart) as opened_chart:
        assert "headrace/values.schema.json" in opened_chart.getnames()
    for name in files:
        if name.endswith(".json"):
            assert json.loads(files[name].read_text())["components"]


def test_the_notes_are_the_versions_section_else_the_unreleased_one() -> None:
    changelog = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.0.0] - 2026-01-01\n\n- first\n"
    assert build.notes_of(changelog, "1.0.0") == "- first\n"
    assert build.notes_of(changelog, "1.1.0") == "- new\n"
    with pytest.raises(SystemExit, match="no section"):
        build.notes_of("# Changelog\n\n## [Unreleased]\n\n", "1.1.0")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_commands_that_work_on_any_machine(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    tasks = yaml.safe_load((ROOT / "Taskfile.yml").read_text())["tasks"]
    # The least by default; a job asks for more.
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"]
        for step in job["steps"]:
            assert len({"run", "uses"} & step.keys()) == 1
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w./-]+@(v\d+|release/v\d+)", step["uses"])
                continue
            command = step["run"].split()
            if command[0] == "./taskw":
                assert command[1] in tasks
            elif command[0].startswith("."):
                assert os.access(ROOT / command[0], os.X_OK)
            checked = subprocess.run(
                ["/bin/sh", "-n", "-c", step["run"]], capture_output=True, check=False
            )
            assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md"])
def test_the_pages_that_a_forge_shows_have_working_links(name: str) -> None:
    for target in targets((ROOT / name).read_text()):
        if not target.startswith(("https://", "#")):
            assert (ROOT / target.partition("#")[0]).exists(), target


def test_the_forms_for_issues_have_what_a_forge_requires() -> None:
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"]
        assert form["description"]
        assert all(field["type"] for field in form["body"])


def test_a_devcontainer_and_the_hooks_before_a_commit_use_what_the_lock_has() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "./taskw install"
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in hooks["repos"][0]["hooks"]:
        program = Path(hook["entry"].split()[0]).name
        assert Path(sys.executable).with_name(program).exists()
