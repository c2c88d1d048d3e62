"""The options of `headrace sinks …` and `headrace dead-letters …`."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.outcome import fail, finish
from headrace.errors import HeadraceError

# Loaded by the commands: the settings and the sinks' classes would slow down every help text.
if TYPE_CHECKING:
    from headrace.settings import Settings
    from headrace.sinks.configuration import SinkConfiguration


class ResetPlace(StrEnum):
    """The place where a sink continues after a reset: the values of
    `headrace.sinks.control.ResetTo`, which would load NATS for a help text.
    """

    START = "start"
    NOW = "now"
    SNAPSHOT = "snapshot"


_CONTEXT = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    name="sinks",
    help="The sinks of headrace.toml: check, list, pause, reset, test.",
    no_args_is_help=True,
    context_settings=_CONTEXT,
)
letters = typer.Typer(
    name="dead-letters",
    help="Records that a sink's target refused: list, correct, deliver again, drop.",
    no_args_is_help=True,
    context_settings=_CONTEXT,
)

Config = Annotated[
    str | None,
    typer.Option("--config", help="The file that describes the sinks. [HEADRACE_CONFIG]"),
]
Slot = Annotated[str | None, typer.Option("--slot", help="The suite's slot. [HEADRACE_SLOT]")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name in the file.")]
Sink = Annotated[str, typer.Argument(metavar="SINK", help="The sink's name.")]
RecordId = Annotated[str, typer.Argument(metavar="ID", help="The record's ID.")]


def _loaded(config: str | None, slot: str | None) -> tuple[Settings, dict[str, SinkConfiguration]]:
    from headrace.settings import load
    from headrace.sinks.configuration import load_sinks

    try:
        settings = load(os.environ, source__slot=slot, sinks__file=config)
        return settings, load_sinks(Path(settings.sinks.file), os.environ)
    except HeadraceError as error:
        fail(error)


def _known(name: str, sinks: dict[str, SinkConfiguration]) -> SinkConfiguration:
    from headrace.sinks.configuration import ConfigurationError

    if name not in sinks:
        fail(ConfigurationError(f"there is no sink {name!r}; the sinks: {', '.join(sinks)}"))
    return sinks[name]


def _finish(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    from nats.errors import Error as NatsError

    from headrace.cli.session import refused

    try:
        finish(work)
    except NatsError as error:
        fail(refused(error))


@app.command("plan")
def plan(config: Config = None, slot: Slot = None, as_json: AsJson = False) -> None:
    """Check the file against the source, and show what each sink would do. Changes nothing."""
    from headrace.cli.sinks import look

    settings, sinks = _loaded(config, slot)
    _finish(lambda: look.plan(settings, sinks, as_json=as_json))


@app.command("apply")
def apply(config: Config = None, slot: Slot = None, as_json: AsJson = False) -> None:
    """Remove the position and instructions of sinks that are no longer in the file.

    The sinks' processes read the file when they start: restart those that have changed.
    """
    from headrace.cli.sinks import instruct

    settings, sinks = _loaded(config, slot)
    _finish(lambda: instruct.apply(settings, sinks, as_json=as_json))


@app.command("ls")
def ls(config: Config = None, slot: Slot = None, as_json: AsJson = False) -> None:
    """Show each sink: its target, promise and position, and why it is stopped."""
    from headrace.cli.sinks import look

    settings, sinks = _loaded(config, slot)
    _finish(lambda: look.ls(settings, sinks, as_json=as_json))


@app.command("pause")
def pause(name: Name, config: Config = None, slot: Slot = None, as_json: AsJson = False) -> None:
    """Stop a sink at the end of a transaction, until `headrace sinks resume`."""
    from headrace.cli.sinks import instruct

    settings, sinks = _loaded(config, slot)
    sink = _known(name, sinks)
    _finish(lambda: instruct.pause(settings, sink, paused=True, as_json=as_json))


@app.command("resume")
def resume(name: Name, config: Config = None, slot: Slot = None, as_json: AsJson = False) -> None:
    """Let a sink continue where it stopped."""
    from headrace.cli.sinks import instruct

    settings, sinks = _loaded(config, slot)
    sink = _known(name, sinks)
    _finish(lambda: instruct.pause(settings, sink, paused=False, as_json=as_json))


@app.command("reset")
def reset(
    name: Name,
    to: Annotated[
        ResetPlace,
        typer.Option(
            "--to",
            help="start: all events of the stream; now: only new ones; snapshot: copy again.",
        ),
    ],
    config: Config = None,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Make a sink forget its position. Delivered records stay, and may be delivered again."""
    from headrace.cli.sinks import instruct
    from headrace.sinks.control import ResetTo

    settings, sinks = _loaded(config, slot)
    sink = _known(name, sinks)
    _finish(lambda: instruct.reset(settings, sink, ResetTo(to), as_json=as_json))


@app.command("test")
def dry_run(
    name: Name,
    last: Annotated[
        int, typer.Option("--last", min=0, help="Route this many of the stream's last events.")
    ] = 0,
    config: Config = None,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Connect to a sink's target and log in. For a database, also show what the sink would
    do with each table. With --last, also show the records that the sink would write for the last
    events. Writes nothing, and does not disturb the sink's process.
    """
    from headrace.cli.sinks import dry_run as command

    settings, sinks = _loaded(config, slot)
    sink = _known(name, sinks)
    _finish(lambda: command.run(settings, sink, last, as_json=as_json))


@letters.command("ls")
def letters_ls(
    sink: Annotated[str | None, typer.Argument(metavar="SINK", help="Only of this sink.")] = None,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """List parked records, without their content."""
    from headrace.cli.sinks import parked_records

    settings = _settings(slot)
    _finish(lambda: parked_records.ls(settings, sink, as_json=as_json))


@letters.command("show")
def letters_show(
    sink: Sink, record_id: RecordId, slot: Slot = None, as_json: AsJson = False
) -> None:
    """Show a parked record with its content and the reason."""
    from headrace.cli.sinks import parked_records

    settings = _settings(slot)
    _finish(lambda: parked_records.show(settings, sink, record_id, as_json=as_json))


@letters.command("replay")
def letters_replay(
    sink: Sink,
    record_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One record. [all of the sink]")
    ] = None,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Ask the sink's process to deliver parked records now, as the newest ones."""
    from headrace.cli.sinks import parked_records

    settings = _settings(slot)
    _finish(lambda: parked_records.replay(settings, sink, record_id, as_json=as_json))


@letters.command("correct")
def letters_correct(
    sink: Sink,
    record_id: RecordId,
    given: Annotated[
        list[str] | None, typer.Option("--set", metavar="COLUMN=TEXT", help="A column's new value.")
    ] = None,
    nulls: Annotated[
        list[str] | None, typer.Option("--null", metavar="COLUMN", help="A column to set to NULL.")
    ] = None,
    slot: Slot = None,
    as_json: AsJson = False,
) -> None:
    """Change column values of a parked record; the next replay delivers them.

    The row in PostgreSQL stays as it is.
    """
    from headrace.cli.sinks import parked_records

    settings = _settings(slot)
    wanted = parked_records.wanted(given or [], nulls or [])
    _finish(lambda: parked_records.correct(settings, sink, record_id, wanted, as_json=as_json))


@letters.command("drop")
def letters_drop(
    sink: Sink, record_id: RecordId, slot: Slot = None, as_json: AsJson = False
) -> None:
    """Remove a parked record permanently."""
    from headrace.cli.sinks import parked_records

    settings = _settings(slot)
    _finish(lambda: parked_records.drop(settings, sink, record_id, as_json=as_json))


def _settings(slot: str | None) -> Settings:
    from headrace.settings import load

    try:
        return load(os.environ, source__slot=slot)
    except HeadraceError as error:
        fail(error)
