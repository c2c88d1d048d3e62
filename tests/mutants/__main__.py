"""Which faults in the code no test notices: random ones are put in, one at a time, and the tests
that reach them run.

    python -m tests.mutants --count 300 --seed 7

Unit and property tests try each mutant first, in a fork of one process, and histories of the
simulation those that survive. Then, without `--quick`, the integration tests of its package run on a
copy of the sources. Prints each survivor with its place, and the figures of each package; ends with 1
below `--least`. A survivor is read: it gets a test, or a line with its reason in `accepted.txt`.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.forked import ROOT, Forked, Mutant, Outcome
from tests.mutants.mutations import mutations

ACCEPTED = Path(__file__).with_name("accepted.txt")
# The suite's promises rest on these: the pure cores, the confirmers and what they stand on,
# consumers, mirrors and what verifies them, archive, audit and lake.
MODULES = (
    "libs/headrace/bus/*.py",
    "libs/headrace/confirming/*.py",
    "libs/headrace/jetstream/**/*.py",
    "libs/headrace/postgres/*.py",
    "libs/headrace/pgoutput/*.py",
    "libs/headrace/contract/*.py",
    "libs/headrace/consumer/*.py",
    "libs/headrace/mirror/*.py",
    "libs/headrace/verify/*.py",
    "libs/headrace/archive/*.py",
    "libs/headrace/audit/*.py",
    "libs/headrace/lake/*.py",
    "services/headrace/publisher/*.py",
    "services/headrace/archiver/*.py",
    "services/headrace/wal_reader/*.py",
    "services/headrace/audit_writer/*.py",
    "services/headrace/cli/audit/*.py",
)
QUICK = ("tests/unit", "tests/property")
# Tests of each package with its real process, for mutants that no quick test kills.
REAL = {
    # The first prefix that fits counts.
    "libs/headrace/mirror/postgres.py": (
        "tests/integration/mirror/test_postgres_target.py",
        "tests/integration/mirror/test_mirror_targets.py",
    ),
    "libs/headrace/mirror/": (
        "tests/integration/mirror/test_mirror.py",
        "tests/integration/mirror/test_mirror_targets.py",
    ),
    "libs/headrace/archive/": (
        "tests/integration/archive/test_archive_line.py",
        "tests/integration/archive/test_archive_replay.py",
    ),
    "libs/headrace/audit/destination.py": (
        "tests/integration/audit/test_audit_trail_state.py",
        "tests/integration/audit/test_audit_destination.py",
        "tests/integration/audit/test_audit_two_sources.py",
        "tests/integration/audit/test_audit_writer.py",
    ),
    "libs/headrace/audit/": (
        "tests/integration/audit/test_audit_writer.py",
        "tests/integration/audit/test_audit_destination.py",
        "tests/integration/audit/test_audit_revert.py",
    ),
    "libs/headrace/bus/": (
        "tests/integration/publisher/test_event_shapes.py",
        "tests/integration/publisher/test_event_places.py",
        "tests/integration/line/test_line_faults.py",
    ),
    "libs/headrace/confirming/": (
        "tests/integration/publisher/test_event_shapes.py",
        "tests/crash/test_third_sink.py",
    ),
    "libs/headrace/jetstream/": (
        "tests/integration/jetstream",
        "tests/integration/line/test_line_faults.py",
    ),
    "libs/headrace/postgres/": ("tests/integration/postgres",),
    "libs/headrace/consumer/": ("tests/integration/consumer",),
    "libs/headrace/lake/": (
        "tests/integration/lake",
        "tests/integration/lake_writer/test_lake_line.py",
        "tests/integration/lake_writer/test_lake_changes.py",
    ),
    "libs/headrace/verify/lake": ("tests/integration/lake_writer/test_lake_verify.py",),
    "libs/headrace/verify/": (
        "tests/integration/verify/test_sql_rows.py",
        "tests/integration/verify",
    ),
    "services/headrace/archiver/": (
        "tests/integration/archive/test_archive_line.py",
        "tests/integration/archive/test_archive_holds.py",
    ),
    "services/headrace/wal_reader/": ("tests/integration/line/test_line_faults.py",),
    "services/headrace/audit_writer/": (
        "tests/integration/audit/test_audit_writer.py",
        "tests/integration/audit/test_audit_two_sources.py",
    ),
    "services/headrace/cli/audit/": (
        "tests/integration/audit/test_audit_revert.py",
        "tests/integration/audit/test_audit_revert_old_values.py",
    ),
    "services/headrace/publisher/": (
        "tests/integration/publisher/test_event_shapes.py",
        "tests/integration/publisher/test_event_places.py",
        "tests/integration/schemas/test_schema_events.py",
        "tests/integration/publisher/test_deliveries.py",
        "tests/integration/line/test_line_faults.py",
    ),
}
REAL_TIMEOUT_S = 420.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help="modules whose path contains this")
    parser.add_argument("--least", type=float, default=0.9, help="share that must be killed")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="no integration tests")
    parser.add_argument("--histories", type=int, default=150, help="of the simulation")
    parser.add_argument("--tests", nargs="+", default=QUICK, help="the quick tests to try")
    options = parser.parse_args()
    chosen = _chosen(options.only, options.count, random.Random(options.seed))
    accepted = _accepted()
    wanted = [mutant for mutant in chosen if mutant.accepted_as not in accepted]
    print(f"mutants: {len(chosen)} with --seed {options.seed}", flush=True)
    outcomes = _tried(wanted, options.workers, options.tests, options.histories)
    if not options.quick:
        outcomes.update(_really(outcomes))
    _report(chosen, outcomes)
    killed = sum(outcome is Outcome.KILLED for outcome in outcomes.values())
    return 0 if killed + len(chosen) - len(wanted) >= options.least * len(chosen) else 1


def _accepted() -> set[str]:
    return {
        line.rpartition(" # ")[0]
        for line in ACCEPTED.read_text().splitlines()
        if line and line[0] != "#"
    }


def _chosen(only: str, count: int, chance: random.Random) -> list[Mutant]:
    paths = sorted({path for pattern in MODULES for path in ROOT.glob(pattern)})
    every = [
        Mutant(str(path.relative_to(ROOT)), mutation)
        for path in paths
        if only in str(path)
        for mutation in mutations(path.read_text())
    ]
    return chance.sample(every, min(count, len(every)))


def _tried(
    mutants: Sequence[Mutant], workers: int, tests: Sequence[str], histories: int
) -> dict[Mutant, Outcome]:
    """On the quick tests, which must pass on the code as it is."""
    plugin = Forked(mutants, workers, histories)
    options = ["-qq", "-s", "--no-summary", "--timeout", "0", "-m", "not slow and not spark"]
    pytest.main([*options, *tests], plugins=[plugin])
    if len(plugin.outcomes) != len(mutants):
        sys.exit("pytest did not run the quick tests")
    if plugin.failed:
        print(f"left out, since they fail without any mutant: {', '.join(plugin.failed)}")
    return {mutant: outcome for mutant, (outcome, _) in plugin.outcomes.items()}


def _really(outcomes: dict[Mutant, Outcome]) -> dict[Mutant, Outcome]:
    """On the integration tests of their packages, what the quick tests let through."""
    found: dict[Mutant, Outcome] = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        place = _overlay(Path(folder))
        for mutant, outcome in outcomes.items():
            if outcome is not Outcome.KILLED and (killer := _killer(mutant, place)):
                found[mutant] = Outcome.KILLED
                print(f"{Outcome.KILLED:9} {mutant.name}  {killer}", flush=True)
    return found


def _report(chosen: Sequence[Mutant], outcomes: dict[Mutant, Outcome]) -> None:
    figures: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in chosen:
        outcome = str(outcomes.get(mutant, "accepted"))
        for package in (str(Path(mutant.path).parent), "all"):
            figures[package][outcome] += 1
    for mutant in sorted(outcomes, key=lambda mutant: mutant.name):
        if outcomes[mutant] is Outcome.SURVIVED:
            print(f"SURVIVED {mutant.name}")
    for package, counts in sorted(figures.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        shown = ", ".join(f"{number} {what}" for what, number in sorted(counts.items()))
        print(f"{package}: {counts.total()} mutants, {shown}")


def _overlay(folder: Path) -> Path:
    for part in ("libs", "services"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _killer(mutant: Mutant, place: Path) -> str:
    """The test that noticed, or nothing."""
    there = place / mutant.path
    source = there.read_text()
    there.write_text(mutant.mutation.apply(source))
    try:
        real = next((tests for prefix, tests in REAL.items() if mutant.path.startswith(prefix)), ())
        return next((found for test in real if (found := _failing(test, place))), "")
    finally:
        there.write_text(source)


def _failing(test: str, place: Path) -> str:
    """The first of a file's tests that fails with the mutant in the way of the real code."""
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
        test,
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
        output, _ = process.communicate(timeout=REAL_TIMEOUT_S)
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
