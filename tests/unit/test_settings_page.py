"""docs/settings.md is what its generator makes, and its options are the command's."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from headrace.cli.service import parser
from headrace.settings.reference_page import FLAGS, groups, page

PAGE = Path(__file__).parents[2] / "docs/settings.md"


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "run ./taskw docs:settings"


def test_every_setting_is_on_the_page_once() -> None:
    declared = [setting.metadata["env"] for kind in groups().values() for setting in fields(kind)]
    assert len(set(declared)) == len(declared)
    text = page()
    assert [name for name in declared if text.count(f"| `{name}`") != 1] == []


def test_the_options_of_the_page_are_the_options_of_every_service() -> None:
    shown = parser("wal-reader").format_help()
    assert [flag for flag in FLAGS.values() if flag not in shown] == []
    assert set(re.findall(r"\[(HEADRACE_\w+)[\]=]", shown)) == set(FLAGS)
