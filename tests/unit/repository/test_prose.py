"""Pages, comments, docstrings and messages are written as `tests/prose.py` says, within its budgets."""

from __future__ import annotations

import pytest

from tests.prose import (
    AREAS,
    ROOT,
    RULES,
    blocks_of_page,
    blocks_of_python,
    budget,
    found_in,
    over,
)

FOUND = {
    "told": "What is then lost is told as a gap.",
    "anew": "The archive is not begun anew.",
    "by itself": "A mirror does so by itself.",
    "present": "A bucket has the present schema of every table.",
    "begun": "An upgrade that was begun is finished.",
    "make": "A plan that makes a slot for each suite.",
    "who": "The schema of every table, for who starts now.",
    "free relative": "What was published stays in the stream until its age ends it.",
    "alone": "It follows one table alone.",
    "go on": "Nothing is lost, and it goes on.",
    "in its place": "Schema changes come as events in their place.",
    "two colons": "It has one rule: a row is read once: never twice.",
}
LEFT = (
    "Changes that are lost are reported as a gap.",
    "Leave the table alone.",
    "What does a pause do, and who may ask for one?",
    "`what is told` is code, and so is `by itself`.",
    "Formats such as Parquet are supported.",
    "See [Concepts](told-anew.md).",
)


@pytest.mark.parametrize("area", AREAS)
def test_no_rule_has_more_findings_than_its_budget(area: str) -> None:
    found = over(area)
    shown = "\n".join(str(finding) for finding in found[:200])
    assert not found, f"rewrite these, or as many others of the same rule:\n{shown}"


@pytest.mark.parametrize(("name", "sentence"), FOUND.items())
def test_a_rule_finds_what_it_is_for(name: str, sentence: str) -> None:
    found = found_in("page.md", blocks_of_page(sentence), is_page=True)
    assert name in {finding.rule.name for finding in found}


@pytest.mark.parametrize("sentence", LEFT)
def test_ordinary_sentences_and_code_are_left_as_they_are(sentence: str) -> None:
    assert not list(found_in("page.md", blocks_of_page(sentence), is_page=True))


def test_a_finding_names_the_line_on_which_the_words_are() -> None:
    page = "# Title\n\nOne line.\n```\ntold in code\n```\n\nA long paragraph\nthat was told.\n"
    assert [f.line for f in found_in("page.md", blocks_of_page(page), is_page=True)] == [9]
    module = '"""Title.\n\nA line\nthat was told.\n"""\n\nx = 1  # begun\n'
    found = found_in("module.py", blocks_of_python(module), is_page=False)
    assert [f.line for f in found] == [4, 7]


def test_a_budget_names_areas_and_rules_that_exist() -> None:
    assert set(budget()) == set(AREAS)
    assert {name for rules in budget().values() for name in rules} <= {rule.name for rule in RULES}
    assert (ROOT / "README.md").is_file()
