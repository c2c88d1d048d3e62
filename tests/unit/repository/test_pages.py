"""The pages are consistent: every link has a target, every decision is listed, every named file
exists.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PYTHON_FILE = re.compile(r"`((?:libs|services|tests|examples|docs)/[\w/.*-]+)`")
# In tables of tests, without their folder.
TEST_FILE = re.compile(r"`((?:unit|property|integration|crash|acceptance)/[\w/]+\.py)`")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    lost = []
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = PYTHON_FILE.findall(text) + [f"tests/{path}" for path in TEST_FILE.findall(text)]
    assert [path for path in named if not list(ROOT.glob(path))] == []


def test_every_decision_is_listed_and_says_what_was_rejected() -> None:
    folder = ROOT / "docs/adr"
    decisions = sorted(folder.glob("[0-9]*.md"))
    listed = LINK.findall((folder / "README.md").read_text())
    assert listed == [decision.name for decision in decisions]
    parts = ("**Context.**", "**Decision", "**Rejected.**")
    assert [d.name for d in decisions if any(part not in d.read_text() for part in parts)] == []


def test_every_decision_that_the_code_names_is_there() -> None:
    named = {
        number
        for root in ("libs", "services")
        for module in (ROOT / root).rglob("*.py")
        for number in re.findall(r"docs/adr/(\d{4})", module.read_text())
    }
    there = {decision.name[:4] for decision in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert named
    assert named <= there
