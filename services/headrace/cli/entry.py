"""Entry point of `headrace`: services start on a lean path, all other commands in
`headrace.cli.main`.
"""

from __future__ import annotations

import sys


def main() -> None:
    arguments = sys.argv[1:]
    # Scripts and packagers ask for it often, and it needs no command line.
    if arguments in (["--version"], ["-V"]):
        from headrace.cli import version

        print(version.line())
        return
    try:
        _run(arguments)
    except ModuleNotFoundError as error:
        _explain(error, arguments)


def _run(arguments: list[str]) -> None:
    from headrace.suite.services import SERVICES, SINK

    if arguments and arguments[0] in SERVICES:
        from headrace.cli import service

        sys.exit(service.run(arguments[0], arguments[1:]))
    if arguments and arguments[0] == SINK.name:
        from headrace.cli import service

        sys.exit(service.run_sink(arguments[1:]))
    from headrace.cli import main as commands

    commands.main()


def _explain(error: ModuleNotFoundError, arguments: list[str]) -> None:
    """Report a missing optional package; raise the error of any other module again."""
    from headrace.cli import missing
    from headrace.extras import missing_package
    from headrace.suite.services import SERVICES, SINK

    explained = missing_package(error, *arguments[:1])
    # A supervisor restarts a service, so it must not install anything.
    if arguments[:1] and arguments[0] in (*SERVICES, SINK.name):
        missing.report(explained)
    missing.end(explained)
