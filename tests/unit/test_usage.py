"""What `--help` and the page of commands say of options is what a person has to type."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import typer.main

from headrace.cli.main import app
from headrace.cli.up import Options
from headrace.cli.usage import readable
from headrace.settings import DeliveryMode, load


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        readable(typer.main.get_command(app))(args=arguments, prog_name="headrace", standalone_mode=False)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("command", [(), ("up",), ("verify",), ("audit", "log"), ("replay",), ("archive", "gc")])
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
