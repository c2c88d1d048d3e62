"""The documentation site builds strictly: every page has its place, every link and anchor leads
somewhere, and the pages of the Python API show every public name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from headrace.cli.reference_page import page

ROOT = Path(__file__).parents[3]
# A function with the name of its module, which griffe doesn't find through the package.
SAME_NAME = re.compile(r"\.(\w+)\.\1$")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_builds_without_a_warning(site: Path) -> None:
    assert "<title>" in (site / "index.html").read_text()
    # GitHub wants a bar in a table's code escaped; the site must not show that.
    assert "<code>--arrays literal|list</code>" in (site / "cli.html").read_text()


def test_llms_txt_lists_every_page_of_the_menu(site: Path) -> None:
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    menu = re.findall(r": ([\w/-]+)\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [f"{page.replace('README', 'index')}.html" for page in menu]
    assert listed == pages
    assert [page for page in pages if not (site / page).is_file()] == []


@pytest.mark.parametrize("name", sorted(page.stem for page in (ROOT / "docs/api").glob("*.md")))
def test_a_page_of_the_api_explains_every_public_name(site: Path, name: str) -> None:
    """A name without a docstring gets no entry."""
    entries = re.findall(r'id="(headrace[\w.]+)"', (site / f"api/{name}.html").read_text())
    # A function may have its package's name, too.
    shown = {SAME_NAME.sub(r".\1", entry) for entry in entries} | set(entries)
    text = (ROOT / f"docs/api/{name}.md").read_text()
    documented = re.findall(r"^::: (.+)$", text, re.MULTILINE)
    wanted = {
        f"{module}.{public}"
        for module in documented
        if not SAME_NAME.search(module)
        for public in import_module(module).__all__
    }
    assert wanted
    assert wanted - shown == set()
    assert [entry for entry in entries if re.search(r"\._[a-z]", entry)] == []


def test_the_page_of_commands_is_up_to_date() -> None:
    assert (ROOT / "docs/cli.md").read_text() == page(), "run ./taskw docs:cli"
