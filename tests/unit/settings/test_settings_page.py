"""docs/settings.md matches the declarations, and its options are the services' options."""

from __future__ import annotations

import re
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from headrace.cli.service import parser
from headrace.settings.reference_page import FLAGS, groups, page

PAGE = Path(__file__).parents[3] / "docs/settings.md"


def _declared() -> list[Field[Any]]:
    return [declared for kind in groups().values() for declared in fields(kind)]


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run ./taskw docs:settings"


def test_every_setting_is_on_the_page_once() -> None:
    names = [declared.metadata["env"] for declared in _declared()]
    assert len(set(names)) == len(names)
    assert re.findall(r"^### (\S+)$", page(), re.MULTILINE) == names


def test_every_setting_is_explained_in_sentences() -> None:
    explained = {declared.metadata["env"]: declared.metadata["help"] for declared in _declared()}
    assert [
        name
        for name, text in explained.items()
        if not text.endswith(".") or not (text[0].isupper() or text[0] in "`l") or len(text) < 15
    ] == []


def test_the_options_of_the_page_are_the_options_of_every_service() -> None:
    shown = parser("wal-reader").format_help()
    assert [flag for flag in FLAGS.values() if flag not in shown] == []
    assert set(re.findall(r"\[(HEADRACE_\w+)[\]=]", shown)) == set(FLAGS)
