"""`--help` and the page of commands show options as a person has to type them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from headrace.cli.doctor import run
from headrace.cli.main import app
from headrace.cli.up.run import Options
from headrace.cli.usage import readable
from headrace.metrics.catalogue import FIGURES
from headrace.settings import DeliveryMode, load
from headrace.suite.services import SERVICES


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        readable(typer.main.get_command(app))(
            args=arguments, prog_name="headrace", standalone_mode=False
        )
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "command", [(), ("up",), ("verify",), ("audit", "log"), ("replay",), ("archive", "gc")]
)
def test_no_type_of_python_is_shown(said: Callable[..., str], command: tuple[str, ...]) -> None:
    assert not re.search(r"<(bool|str|int|float|list)", said(*command, "--help"))


def test_the_version_is_told(said: Callable[..., str]) -> None:
    assert re.fullmatch(r"headrace \d+\.\d+\.\d+\S*\n", said("--version"))


def test_commands_come_in_the_order_in_which_they_are_needed(said: Callable[..., str]) -> None:
    panels = re.findall(r"─ ([A-Z][a-z ]+?) (?:\(|─)", said("--help"))
    assert panels[1:3] == ["Trying it out", "Following changes"]
    assert panels[-1] == "Services"


@pytest.mark.parametrize("mode", DeliveryMode)
def test_what_up_is_told_its_services_are_told(mode: DeliveryMode) -> None:
    settings = load(Options(delivery=mode, zstd_events=True).environment())
    assert settings.delivery.mode is mode
    assert settings.format.zstd_events
    assert Options().environment() == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tail", "--limit", "abc"), "'abc' is not a whole number."),
        (("load", "--rate", "fast"), "'fast' is not a number."),
        (("archive", "ls", "--limit", "0"), "0 is too small: the least is 1."),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_plain_words(
    said: Callable[..., str], arguments: tuple[str, ...], words: str
) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        said(*arguments)
    assert refused.value.message == words


def test_every_service_has_figures_on_the_line_of_status() -> None:
    plain = {figure.key for figure in FIGURES if not figure.labels}
    for service in SERVICES.values():
        assert service.telling
        assert set(service.telling) <= plain


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((25, 0, 1), "24 checks passed, 1 warning."),
        ((25, 0, 0), "All 25 checks passed."),
        ((25, 2, 1), "2 of 25 checks failed, 1 warning."),
    ],
)
def test_the_doctors_verdict_counts_no_check_twice(
    counts: tuple[int, int, int], verdict: str
) -> None:
    assert run._verdict(*counts) == verdict


@pytest.mark.parametrize("page", ["architecture.md", "operations.md"])
def test_every_service_is_in_the_tables_of_the_pages_about_services(page: str) -> None:
    text = (Path(__file__).parents[3] / "docs" / page).read_text()
    named = set(re.findall(r"^\| `?([a-z-]+)`? \|", text, re.MULTILINE))
    assert set(SERVICES) <= named
