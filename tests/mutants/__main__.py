"""Which faults in the code no test notices: random ones are put in, one at a time, and the tests
that reach them run.

    python -m tests.mutants --count 300 --seed 7

Prints each survivor with its place, and the share that was killed; ends with 1 below `--least`. A
survivor is read: it gets a test, or a line with its reason in `accepted.txt`.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutations import Mutation, mutations

ROOT = Path(__file__).parents[2]
ACCEPTED = Path(__file__).with_name("accepted.txt")
# What the suite's promises rest on: pure cores, and what confirms, mirrors, archives and audits.
MODULES = (
    "libs/headrace/bus/*.py",
    "libs/headrace/pgoutput/*.py",
    "libs/headrace/contract/*.py",
    "libs/headrace/mirror/*.py",
    "libs/headrace/archive/*.py",
    "libs/headrace/audit/*.py",
    "services/headrace/publisher/*.py",
    "services/headrace/archiver/*.py",
    "services/headrace/wal_reader/*.py",
)
QUICK = ("tests/unit", "tests/property")
# Where a part's own process does the work, these run if nothing quick has noticed; the first that
# fails is enough.
REAL = {
    "libs/headrace/mirror/": (
        "tests/integration/test_mirror.py",
        "tests/integration/test_mirror_targets.py",
    ),
    "libs/headrace/archive/": (
        "tests/integration/test_archive_line.py",
        "tests/integration/test_archive_replay.py",
    ),
    "libs/headrace/audit/": (
        "tests/integration/test_audit_writer.py",
        "tests/integration/test_audit_destination.py",
    ),
    "libs/headrace/bus/": (
        "tests/integration/test_event_shapes.py",
        "tests/integration/test_line_faults.py",
    ),
    "services/headrace/archiver/": (
        "tests/integration/test_archive_line.py",
        "tests/integration/test_archive_holds.py",
    ),
    "services/headrace/wal_reader/": ("tests/integration/test_line_faults.py",),
    "services/headrace/publisher/": (
        "tests/integration/test_event_shapes.py",
        "tests/integration/test_schema_events.py",
        "tests/integration/test_deliveries.py",
        "tests/integration/test_line_faults.py",
    ),
}
# Of the tests that reach a function, the quickest.
TESTS_MAX = 40
QUICK_TIMEOUT_S, REAL_TIMEOUT_S = 120.0, 420.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault, and where it is."""

    path: str
    mutation: Mutation

    @property
    def name(self) -> str:
        return f"{self.path}:{self.mutation.line} {self.mutation.function}: {self.mutation.what}"


@dataclass(frozen=True, slots=True)
class Reach:
    """Which quick tests reach which function, and how long each takes."""

    tests: dict[str, list[str]]
    took: dict[str, float]

    def of(self, mutant: Mutant) -> list[str]:
        found = self.tests.get(f"{mutant.path}:{mutant.mutation.first_line}", [])
        return sorted(found, key=lambda test: self.took.get(test, 0.0))[:TESTS_MAX]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="unit and property tests alone")
    options = parser.parse_args()
    chosen = _chosen(options.only, options.count, random.Random(options.seed))
    print(f"mutants: {len(chosen)} with --seed {options.seed}", flush=True)
    reach = _reach()
    survivors = _run(chosen, reach, workers=options.workers, quick=options.quick)
    killed = len(chosen) - len(survivors)
    print(f"{killed} of {len(chosen)} killed ({killed / len(chosen):.0%})")
    for mutant in survivors:
        print(f"SURVIVED {mutant.name}")
    return 0 if killed >= options.least * len(chosen) else 1


def _chosen(only: str, count: int, chance: random.Random) -> list[Mutant]:
    accepted = {
        line.partition(" # ")[0]
        for line in ACCEPTED.read_text().splitlines()
        if line and line[0] != "#"
    }
    paths = sorted({path for pattern in MODULES for path in ROOT.glob(pattern)})
    every = [
        Mutant(str(path.relative_to(ROOT)), mutation)
        for path in paths
        if only in str(path)
        for mutation in mutations(path.read_text())
    ]
    wanted = [
        mutant
        for mutant in every
        if f"{mutant.path} {mutant.mutation.function}: {mutant.mutation.what}" not in accepted
    ]
    return chance.sample(wanted, min(count, len(wanted)))


def _reach() -> Reach:
    """Run the quick tests once on the code as it is; they must pass."""
    with tempfile.TemporaryDirectory() as folder:
        note = Path(folder) / "reached.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "mutants.reached",
            "-m",
            "not slow and not spark",
            *QUICK,
        ]
        environment = {
            **os.environ,
            "HEADRACE_REACHED": str(note),
            "PYTHONPATH": str(ROOT / "tests"),
        }
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            sys.exit(f"the tests fail without any mutant:\n{done.stdout[-3000:]}")
        found = json.loads(note.read_text())
    return Reach(found["tests"], found["took"])


def _run(chosen: Sequence[Mutant], reach: Reach, *, workers: int, quick: bool) -> list[Mutant]:
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    survivors: list[Mutant] = []

    def work() -> None:
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            place = _overlay(Path(folder))
            while True:
                try:
                    mutant = waiting.get_nowait()
                except queue.Empty:
                    return
                killed_by = _killed(mutant, reach, place, quick=quick)
                print(
                    f"{'killed' if killed_by else 'SURVIVED':8} {mutant.name}  {killed_by}",
                    flush=True,
                )
                if not killed_by:
                    survivors.append(mutant)

    threads = [threading.Thread(target=work, name=f"mutants {number}") for number in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(survivors, key=lambda mutant: mutant.name)


def _overlay(folder: Path) -> Path:
    for part in ("libs", "services"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _killed(mutant: Mutant, reach: Reach, place: Path, *, quick: bool) -> str:
    """The test that noticed, or nothing."""
    there, source = place / mutant.path, (ROOT / mutant.path).read_text()
    there.write_text(mutant.mutation.apply(source))
    try:
        tests = reach.of(mutant)
        if tests and (found := _failing(tests, place, QUICK_TIMEOUT_S)):
            return found
        real = next((tests for prefix, tests in REAL.items() if mutant.path.startswith(prefix)), ())
        return (
            ""
            if quick
            else next(
                (found for test in real if (found := _failing([test], place, REAL_TIMEOUT_S))), ""
            )
        )
    finally:
        there.write_text(source)


def _failing(tests: Sequence[str], place: Path, timeout_s: float) -> str:
    """The first of these that fails with the mutant in the way of the real code."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{place / 'libs'}:{place / 'services'}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not spark",
        "--timeout",
        "100",
        *tests,
    ]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "by its time"
    if process.returncode in (0, 5):
        return ""
    failed = next(
        (line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "ERROR"
    )
    return failed.split(" - ")[0][:120]


if __name__ == "__main__":
    sys.exit(main())
