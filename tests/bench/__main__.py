"""`./taskw bench`: the table of figures, each with its limit in the same run."""

from __future__ import annotations

import argparse
import asyncio
import os

from rich.console import Console

from headrace.accelerator import native
from tests.bench import (
    audit,
    backlog,
    backup,
    copies,
    lake,
    latency,
    plots,
    result,
    sinks,
    snapshot,
    snapshot_memory,
    sql,
    startup,
    suites,
    workloads,
)
from tests.bench.machine import Machine, machine
from tests.bench.result import Figure

FULL_ROWS = 1_000_000
# Wide enough for every column, also where the output is a pipe.
_WIDTH = 150
PARTS = ("drain", "latency", "start", "snapshot", "workloads", "suites", "audit", "sinks")
QUICK_PARTS = ("drain", "latency", "start", "snapshot")


async def _measure(arguments: argparse.Namespace) -> list[Figure]:
    environment = dict(setting.split("=", 1) for setting in arguments.set)
    figures: list[Figure] = []
    async with machine() as servers:
        for part in arguments.parts.split(","):
            figures += await _part(servers, part, arguments, environment)
    return figures


async def _part(
    servers: Machine, part: str, arguments: argparse.Namespace, environment: dict[str, str]
) -> list[Figure]:
    rows, share = arguments.rows, arguments.rows / FULL_ROWS
    measures = {
        "drain": lambda: backlog.measure(servers, rows, arguments.delivery.split(","), environment),
        "latency": lambda: latency.measure(servers, arguments.seconds, environment),
        "start": lambda: startup.measure(servers, environment),
        "snapshot": lambda: snapshot.measure(servers, rows, environment),
        "snapshot-memory": lambda: snapshot_memory.measure(servers, 10 * rows, environment),
        "workloads": lambda: workloads.measure(
            servers, share, arguments.workloads.split(","), environment
        ),
        "audit": lambda: audit.measure(servers, rows, environment),
        "lake": lambda: lake.measure(servers, rows, arguments.seconds, environment),
        "backup": lambda: backup.measure(rows),
        "copies": lambda: copies.measure(servers, rows, environment),
        "sinks": lambda: sinks.measure(rows),
        "sql": lambda: sql.measure(servers, arguments.scale, rows),
        "suites": lambda: suites.measure(servers, rows, environment),
    }
    return await measures[part]()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./taskw bench --", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="less of everything, in under two minutes"
    )
    parser.add_argument(
        "--rows", type=int, help="rows of the backlog and of the snapshot, a multiple of 1,000"
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="TPC-H's scale for the part sql; 1 is 8.7 million rows",
    )
    parser.add_argument("--seconds", type=float, help="how long latency is measured")
    parser.add_argument(
        "--parts",
        help=f"of {', '.join(PARTS)}; backup, copies, lake, snapshot-memory and sql too, which take longer",
    )
    every = ",".join(workload.name for workload in workloads.WORKLOADS)
    parser.add_argument("--workloads", default=every, help="workloads to drain")
    parser.add_argument("--plot", action="store_true", help="draw the run into docs/pictures")
    parser.add_argument(
        "--delivery", default=",".join(backlog.TARGETS), help="ways of delivery to drain with"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the suite"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the run as a line of JSON instead"
    )
    parser.add_argument(
        "--save", action="store_true", help="add the run to docs/benchmarks/history.jsonl"
    )
    arguments = parser.parse_args()
    arguments.rows = arguments.rows or (200_000 if arguments.quick else FULL_ROWS)
    arguments.parts = arguments.parts or ",".join(QUICK_PARTS if arguments.quick else PARTS)
    arguments.seconds = arguments.seconds or (5 if arguments.quick else 20)
    return arguments


def main() -> None:
    arguments = _arguments()
    figures = asyncio.run(_measure(arguments))
    line = result.line(figures, arguments.rows)
    if arguments.json:
        print(line)
    else:
        load = os.getloadavg()[0]
        cores = len(os.sched_getaffinity(0))
        accelerated = "without the accelerator" if native is None else "with the accelerator"
        title = f"{arguments.rows:,} rows; {cores} cores, load {load:.1f}, {accelerated}"
        result.show(figures, title, Console(width=_WIDTH))
    if arguments.save:
        result.keep(line)
    if arguments.plot:
        plots.draw(figures)


main()
