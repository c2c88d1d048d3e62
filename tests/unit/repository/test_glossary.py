"""docs/glossary.md has each term once, and neither pages nor code use the words that it discourages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.prose import ROOT, blocks_of_page, blocks_of_python, files, prose
from tests.support.source_tree import modules, tree

PAGE = (ROOT / "docs/glossary.md").read_text()
ENTRIES, TABLE = PAGE.split("## Words to avoid")
TERMS = re.findall(r"^\*\*(.+?)\*\* —", ENTRIES, re.MULTILINE)
# "Postgres" is wrong only in prose, and a name in code can't contain a hyphen.
IN_PROSE_ONLY = re.compile(r"[A-Z]|.*(?:reader|responder|publisher|writer)$")
# Spark's own name of its scheduler.
ALLOWED = {
    # Kafka's own term, which its users look for.
    "docs/sinks-kafka.md": {"tombstone", "tombstones"},
    "libs/headrace/sinks/kafka.py": {"tombstones"},
    "libs/headrace/sinks/kafka_client.py": {"tombstones"},
    # The command's name, which users of other lakes know.
    "services/headrace/cli/lake/commands.py": {"backfill"},
    "libs/headrace/settings/snapshot.py": {"master"},
    "libs/headrace/spark/driver.py": {"master"},
}
PATHS = [
    *(page for page in files("*.md", "docs/*.md", "docs/adr/*.md") if page.name != "glossary.md"),
    *(ROOT / module for module in modules("libs", "services")),
]


def discouraged() -> dict[str, str]:
    """Each word to avoid, with the word to write."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", TABLE, re.MULTILINE)[1:]
    return {word: write for words, write in rows for word in words.split(", ")}


def pattern(words: Iterable[str]) -> re.Pattern[str]:
    # A capital letter matters: PostgreSQL's and the services' names differ only in such details.
    parts = [word if word[0].isupper() else f"(?i:{word})" for word in words]
    return re.compile(rf"\b(?:{'|'.join(parts)})s?\b")


IN_PROSE = pattern(discouraged())
IN_NAMES = pattern(word for word in discouraged() if not IN_PROSE_ONLY.match(word))


def names(module: Path) -> Iterator[str]:
    """The names in a module, as words."""
    for node in ast.walk(tree(module.relative_to(ROOT))):
        for kind in ("name", "id", "attr", "arg"):
            name = getattr(node, kind, None)
            if isinstance(name, str):
                yield re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")


def found_in(path: Path) -> set[str]:
    """The discouraged words in a page, or in the prose and the names of a module."""
    blocks = blocks_of_page if path.suffix == ".md" else blocks_of_python
    found = {
        match[0]
        for block in blocks(path.read_text())
        for match in IN_PROSE.finditer(prose(block.text))
    }
    if path.suffix == ".py":
        found |= {match[0] for name in names(path) for match in IN_NAMES.finditer(name)}
    allowed = ALLOWED.get(str(path.relative_to(ROOT)), set())
    return {word.lower() for word in found} - allowed


def test_the_glossary_has_each_term_once_and_in_order() -> None:
    assert len(TERMS) > 50
    assert sorted(set(TERMS), key=str.lower) == TERMS


def test_a_term_in_bold_has_an_entry() -> None:
    entries = {term.lower() for term in TERMS}
    bold = {word.lower() for word in re.findall(r"\*\*(.+?)\*\*", ENTRIES)}
    assert sorted(word for word in bold if not {word, word.removesuffix("s")} & entries) == []


def test_no_page_and_no_code_uses_a_discouraged_word() -> None:
    assert len(discouraged()) > 20
    found = {
        str(path.relative_to(ROOT)): sorted(words) for path in PATHS if (words := found_in(path))
    }
    assert found == {}, "docs/glossary.md has the words to write"


@pytest.mark.parametrize(
    "text", ["An initial load.", "several heirs", "with Postgres", "a Backfill"]
)
def test_a_discouraged_word_is_found(text: str) -> None:
    assert IN_PROSE.search(text)


@pytest.mark.parametrize("text", ["PostgreSQL", "JetStream", "the user postgres", "inherited"])
def test_names_and_other_words_are_not_found(text: str) -> None:
    assert not IN_PROSE.search(text)
