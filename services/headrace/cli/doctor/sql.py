"""The checks of `headrace doctor` on the SQL server: its settings, folder, certificate, lake, port.

Stores nothing and logs in nowhere: the port is asked only whether it speaks PostgreSQL's protocol.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import ssl
import struct
from importlib import util
from pathlib import Path

from headrace.cli.doctor.checks import Findings
from headrace.cli.doctor.folders import judge_folder
from headrace.errors import HeadraceError
from headrace.lake.opening import check_place
from headrace.settings import Settings, SqlSettings
from headrace.sql.private_server import check_sql

GROUP = "SQL"
_TIMEOUT_S = 5.0
# PostgreSQL's SSLRequest: its length, and a number that no version of the protocol has.
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_START = "Start `headrace sql-server`; look at its log."
_FOLDER = "HEADRACE_SQL_FOLDER"


def is_wanted(settings: Settings) -> bool:
    """Whether this suite has a SQL server, as far as this environment says."""
    folder = Path(settings.sql.folder)
    return settings.sql.enabled or _FOLDER in os.environ or folder.is_dir()


async def examine(settings: Settings) -> Findings:
    findings = Findings(GROUP, [])
    if not is_wanted(settings):
        return findings
    try:
        check_place(settings)
        check_sql(settings.sql)
    except HeadraceError as error:
        findings.fail("settings", str(error.args[0]), error.remedy)
        return findings
    # Looked for, not imported: that would take a second, and the memory of the whole engine.
    if util.find_spec("duckdb") is None:
        findings.unread("copies", "duckdb", "sql")
        return findings
    judge_folder(
        findings,
        "folder",
        Path(settings.sql.folder),
        f"Let the user of the SQL server write there, or change {_FOLDER}.",
    )
    _certificate(settings.sql, findings)
    await asyncio.to_thread(_lake, settings, findings)
    await _port(settings.sql, findings)
    return findings


def _certificate(settings: SqlSettings, findings: Findings) -> None:
    """Whether certificate and key belong together; without them, who can listen."""
    if settings.tls_cert is not None:
        try:
            # As the SQL server does: this also compares the key with the certificate.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
        except OSError as error:
            findings.fail(
                "certificate",
                f"{settings.tls_cert} can't be used with {settings.tls_key}: {error.strerror}",
                "Correct HEADRACE_SQL_TLS_CERT and HEADRACE_SQL_TLS_KEY: PEM files that the user "
                "of the SQL server can read.",
            )
        else:
            findings.ok("certificate", f"{settings.tls_cert}, with its key")
        return
    if _is_loopback(settings.host):
        findings.ok("certificate", "none; only this machine can connect")
    else:
        findings.warn(
            "certificate",
            f"none: connections to {settings.host} are not encrypted",
            "Set HEADRACE_SQL_TLS_CERT, HEADRACE_SQL_TLS_KEY and HEADRACE_SQL_TLS_REQUIRED=true.",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _lake(settings: Settings, findings: Findings) -> None:
    """Whether the SQL server can read what it shows."""
    from headrace.cli.lake.selection import opened  # an extra

    try:
        with opened(settings.lake.url, settings.lake.catalog) as lake:
            cut = lake.catalog.last_cut(settings.source.slot)
    except HeadraceError as error:
        findings.fail("lake", str(error.args[0]), error.remedy)
        return
    if cut is None:
        findings.warn("lake", "has no cut yet: clients see no table", "Start the lake-writer.")
    else:
        findings.ok("lake", f"readable; the last cut is {cut.number}")


async def _port(settings: SqlSettings, findings: Findings) -> None:
    """Whether a PostgreSQL's protocol is spoken at its address."""
    host = settings.host
    if host in {"0.0.0.0", "::"}:  # noqa: S104  # a setting's value
        # Not an address that one can connect to everywhere.
        host = "127.0.0.1"
    where = f"{host}:{settings.port}"
    try:
        answer = await _asked(host, settings.port)
    except (OSError, asyncio.IncompleteReadError):
        findings.warn("port", f"nothing answers on {where}", _START)
        return
    match answer:
        case b"S":
            findings.ok("port", f"{where} answers, with TLS")
        case b"N" if settings.tls_cert is None:
            findings.ok("port", f"{where} answers, without TLS")
        case b"N":
            findings.fail(
                "port",
                f"{where} answers without TLS",
                "Restart the SQL server for its new settings.",
            )
        case _:
            findings.fail(
                "port",
                f"another program than a SQL server answers on {where}",
                "Change HEADRACE_SQL_PORT, or stop the other program.",
            )


async def _asked(host: str, port: int) -> bytes:
    async with asyncio.timeout(_TIMEOUT_S):
        # The protocol's first message, which a server answers before any login.
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_SSL_REQUEST)
            await writer.drain()
            return await reader.readexactly(1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
