"""The console's pages in the package are those of its sources, small, and complete in themselves."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from headrace.console import __file__ as package

WEB = Path(package).parent / "web"
STATIC = Path(str(resources.files("headrace.console"))) / "static"
FIRST_ROUTE_BYTES_MAX = 60_000
CHUNK_BYTES_MAX = 40_000
STYLE_BYTES_MAX = 15_000


@pytest.fixture(scope="module")
def web() -> Path:
    """The sources, with what builds them."""
    if shutil.which("npm") is None or not (WEB / "node_modules").exists():
        pytest.skip("the console's npm packages are not installed: tests/tools installs them")
    return WEB


def npm(web: Path, *arguments: str) -> None:
    run(web, "npm", *arguments)


def run(web: Path, program: str, *arguments: str) -> None:
    path = shutil.which(program)
    assert path is not None
    done = subprocess.run([path, *arguments], cwd=web, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def packed(name: str) -> int:
    """The size of a file as a browser loads it."""
    return len(gzip.compress((STATIC / name.lstrip("/")).read_bytes(), 9))


def test_the_package_has_the_pages_that_its_sources_build(web: Path, tmp_path: Path) -> None:
    run(web, "node", "build.mjs", str(tmp_path / "static"))
    assert contents(tmp_path / "static") == contents(STATIC), "run ./taskw console:build"


def test_the_types_are_those_of_the_description(web: Path, tmp_path: Path) -> None:
    made = tmp_path / "api.d.ts"
    npm(web, "exec", "--", "openapi-typescript", "../openapi.yaml", "-o", str(made))
    assert made.read_text() == (web / "src" / "api.d.ts").read_text(), "run ./taskw console:build"


def test_the_sources_are_typed_strictly(web: Path) -> None:
    npm(web, "run", "types")


def test_the_parts_without_a_browser_keep_their_promises(web: Path) -> None:
    npm(web, "run", "test")


def test_what_the_first_page_loads_is_small() -> None:
    manifest = json.loads((STATIC / "manifest.json").read_text())
    assert sum(packed(name) for name in manifest["first_route"]) <= FIRST_ROUTE_BYTES_MAX
    assert packed(manifest["style"]) <= STYLE_BYTES_MAX
    for path in (STATIC / "assets").glob("*.js"):
        assert packed(f"assets/{path.name}") <= CHUNK_BYTES_MAX, path.name


def test_nothing_is_loaded_from_another_place_or_run_from_text() -> None:
    for name, content in contents(STATIC).items():
        text = content.decode()
        # Names of XML's vocabularies are no addresses; neither are links that a person follows.
        addresses = set(re.findall(r"https?://[\w./-]+", text))
        assert not {each for each in addresses if "www.w3.org" not in each}, name
        assert "eval(" not in text, name
        assert "Function(" not in text, name
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style| on\w+=|style=", page)


def test_the_lock_has_a_hash_of_every_package_and_the_address_of_none() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert len(packages) > 20
    for name, entry in packages.items():
        assert "resolved" not in entry, name
        assert not name or entry["integrity"].startswith("sha512-"), name
