"""Entry point of `headrace`: services start on a lean path, all other commands in
`headrace.cli.main`.
"""

from __future__ import annotations

import sys

from headrace.cli import service
from headrace.suite.services import SERVICES, SINK


def main() -> None:
    arguments = sys.argv[1:]
    if arguments and arguments[0] in SERVICES:
        sys.exit(service.run(arguments[0], arguments[1:]))
    if arguments and arguments[0] == SINK.name:
        sys.exit(service.run_sink(arguments[1:]))
    from headrace.cli import main as commands

    commands.main()
