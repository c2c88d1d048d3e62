"""The form of `--help`: commands and options in the order in which people need them, values by
name.

Typer would show types of Python, even for flags, and commands in the order of imports. Changes only
the output, of help and of errors.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from typer import BadParameter, Context
from typer.core import TyperCommand, TyperGroup, TyperOption

HELP_NAMES = ["-h", "--help"]
_ORDER = (
    "Trying it out",
    "Following changes",
    "Mirrors",
    "The audit trail",
    "The archive",
    "The lake",
    "The sinks",
    "Setup and operation",
)


def readable(command: Any) -> Any:
    """The command, its options and those of all commands below it in readable form."""
    # Services parse their options themselves, and ignore these.
    if isinstance(command, TyperCommand | TyperGroup) and not command.context_settings.get(
        "ignore_unknown_options"
    ):
        # On this one command, not on its class, which is Typer's.
        setattr(command, "parse_args", _in_own_words(command.parse_args))  # noqa: B010
        command.get_help_option(Context(command, help_option_names=HELP_NAMES))
        # Made once, and shown with the others.
        for option in (*command.params, command._help_option):  # noqa: SLF001
            if option is not None and option.nargs == 1 and not option.multiple:
                setattr(option, "process_value", _unset_stays_unset(option))  # noqa: B010
            if isinstance(option, TyperOption):
                option.metavar = placeholder(option)
    if isinstance(command, TyperGroup):
        command.commands = dict(sorted(command.commands.items(), key=lambda item: _place(item[1])))
        for one in command.commands.values():
            readable(one)
    return command


def _unset_stays_unset(option: Any) -> Callable[[Context, Any], Any]:
    """Leave an option alone that was not given: Typer would load pydantic, for a third of a
    command's start, to find that nothing is valid.
    """
    process: Callable[[Context, Any], Any] = option.process_value

    def process_value(context: Context, value: Any) -> Any:
        if value is not None or option.required:
            return process(context, value)
        if option.callback is None:
            return None
        return option.callback(context, option, None)

    return process_value


def _in_own_words(parse: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Report a value of the wrong type in plain words."""

    def parse_args(*arguments: Any) -> list[str]:
        try:
            return parse(*arguments)
        except BadParameter as error:
            error.message = refusal(error)
            raise

    return parse_args


def refusal(error: BadParameter) -> str:
    """Explain what is wrong with the value: Typer's own messages are for programmers."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not found:
        return error.message
    kind = found[0].get("type")
    value = found[0].get("input")
    bounds = found[0].get("ctx", {})
    if kind in ("int_parsing", "int_from_float", "int_parsing_size"):
        return f"{value!r} is not a whole number."
    if kind == "float_parsing":
        return f"{value!r} is not a number."
    if kind == "greater_than_equal":
        return f"{value} is too small: the least is {bounds['ge']}."
    if kind == "less_than_equal":
        return f"{value} is too large: the most is {bounds['le']}."
    return error.message


def _place(command: Any) -> int:
    panel = getattr(command, "rich_help_panel", None)
    if panel in _ORDER:
        return _ORDER.index(panel)
    return len(_ORDER)


def placeholder(option: TyperOption) -> str:
    """The placeholder for the option's value."""
    if option.metavar is not None or option.is_flag:
        return option.metavar or ""
    if option.type_descriptor.is_choice:
        choices = option.type_descriptor.choices
    else:
        choices = None
    if choices:
        return "|".join(str(one.value if isinstance(one, Enum) else one) for one in choices)
    return max(option.opts, key=len).removeprefix("--").replace("-", "_").upper()
