"""`./taskw test:chaos`: minutes of faults, and a verdict."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from pathlib import Path

from tests.chaos.packets import enter_own_network
from tests.chaos.run import Run, run

_DELIVERIES = ("event", "batch", "transaction")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./taskw test:chaos --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long things fail (10)")
    parser.add_argument(
        "--seed", type=int, help="repeats a run's sequence of faults; drawn and printed without it"
    )
    parser.add_argument(
        "--delivery",
        choices=(*_DELIVERIES, "all"),
        default="all",
        help="all: a third of the time for each (all)",
    )
    parser.add_argument("--rows-per-s", type=float, default=600.0, help="how much is written (600)")
    parser.add_argument("--keep", default="", help="a folder for the logs of a run that fails")
    parser.add_argument(
        "--everything",
        action="store_true",
        help=(
            "mirrors, audit trail, archive and a second suite on the stream too, with DDL; all "
            "held to SQL at the end"
        ),
    )
    parser.add_argument(
        "--damage",
        action="store_true",
        help=(
            "damage JetStream's store too: each change must then be in the stream or reported as "
            "missing"
        ),
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    seed = random.SystemRandom().randrange(1 << 31) if arguments.seed is None else arguments.seed
    began = time.monotonic()

    def log(what: str) -> None:
        print(f"{time.monotonic() - began:8.1f} {what}", flush=True)

    print(
        f"chaos: seed={seed} minutes={arguments.minutes} delivery={arguments.delivery}", flush=True
    )
    own_network = enter_own_network()
    if not own_network:
        print("chaos: no separate network is allowed here, so no packets are lost", flush=True)
    if arguments.keep:
        Path(arguments.keep).mkdir(parents=True, exist_ok=True)
    deliveries = _DELIVERIES if arguments.delivery == "all" else (arguments.delivery,)
    kept = True
    for delivery in deliveries:
        asked = Run(
            minutes=arguments.minutes / len(deliveries),
            seed=seed,
            delivery=delivery,
            rows_per_s=arguments.rows_per_s,
            keep=arguments.keep,
            own_network=own_network,
            everything=arguments.everything,
            damage=arguments.damage,
        )
        verdict = asyncio.run(run(asked, log))
        print(verdict.text(), flush=True)
        kept = kept and verdict.kept
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
