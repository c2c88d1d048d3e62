"""A webhook as a sink: a signed POST for each record, at least once, in order within a key.

Requests follow the Standard Webhooks specification. Each attempt for a record has the same
`webhook-id`, by which a receiver recognizes a repeat. Records with the same key use the same lane,
which sends one after the other; a record without a key waits for all lanes, and they for it.

It never follows a redirect, and sends nothing to private addresses unless they are allowed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

import aiohttp
from yarl import URL

from headrace.consumer.watermark import Watermark
from headrace.errors import describe
from headrace.process.failpoint import failpoint
from headrace.sinks.port import (
    DisabledError,
    Pace,
    Promise,
    RefusedError,
    SinkAwayError,
    SinkError,
    SinkOptions,
)
from headrace.sinks.routing import Record, RoutedTransaction
from headrace.sinks.target_options import check, read_options
from headrace.sinks.webhook_addresses import (
    PrivateAddressError,
    PublicResolver,
    allowed,
    networks,
    tls_context,
)
from headrace.sinks.webhook_signature import Signer, header_safe

# Without progress for this long, the session ends; the next one sends what was not committed again.
RETRY_S = 600.0
RETRY_AFTER_S_MAX = 300.0
BACKOFF_S = 0.2
BACKOFF_S_MAX = 30.0
# Statuses that concern the endpoint and not the record: no record would be accepted.
_MISCONFIGURED = frozenset({401, 403, 404, 405, 407})
_PASSING = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class WebhookOptions:
    """The options of a webhook, `[sink.options]` in headrace.toml."""

    # The signing secret, `whsec_…`; required.
    secret: str = field(default="", repr=False)
    # While secrets are exchanged: the other one. Requests then have both signatures.
    second_secret: str = field(default="", repr=False)
    # More request headers, such as Authorization.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content_type: str = "application/json"
    # Requests at the same time, at most.
    lanes: int = 8
    # For one request.
    timeout_s: float = 15.0
    # A larger record is refused.
    body_bytes_max: int = 1_048_576
    # Networks that may be reached although they are not public, such as 10.1.0.0/16.
    allow_networks: tuple[str, ...] = ()
    # Accept an http:// address, without encryption.
    allow_http: bool = False
    # Authorities that sign the receiver's certificate, instead of the system's.
    ca_file: str = ""


class WebhookSink:
    """One session of a webhook. Its marks are stored elsewhere (`RememberedMarks`)."""

    promise: ClassVar[Promise] = Promise.AT_LEAST_ONCE
    # Small, because a crash repeats what was sent since the last commit.
    pace: ClassVar[Pace] = Pace(events_max=100, timeout_s=2 * RETRY_S)

    def __init__(self, options: SinkOptions) -> None:
        chosen = read_options(WebhookOptions, options)
        name = options.name
        self._url = URL(options.to)
        check(chosen.lanes > 0, name, "lanes", "Use 1 or more.")
        check(
            self._url.scheme == "https" or chosen.allow_http,
            name,
            "to",
            "Use https://, or set `allow_http = true`.",
        )
        check(self._url.password is None, name, "to", "Put credentials into `headers`.")
        self._name = name
        self._options = chosen
        self._signer = Signer.of(name, chosen.secret, chosen.second_secret)
        self._networks = networks(name, chosen.allow_networks)
        self._http: aiohttp.ClientSession | None = None
        # No lane sends before this moment, which a receiver has asked for.
        self._resume_at = 0.0
        self._failure: SinkError | None = None

    async def open(self) -> Mapping[str, Watermark]:
        """Create the HTTP client; requests come later."""
        self._refuse_private_literal()
        connector = aiohttp.TCPConnector(
            # A connection for each lane: none waits for another's.
            limit=self._options.lanes,
            resolver=PublicResolver(self._networks),
            ssl=tls_context(self._options.ca_file),
        )
        self._http = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._options.timeout_s),
            # Answers are not read, and a small compressed one could expand to gigabytes.
            auto_decompress=False,
            # A cookie would be state that a new session does not have.
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return {}

    async def check(self) -> str:
        """Connect, with TLS if the address has it. Any request would be a delivery, so whether the
        receiver accepts the signature is not known.
        """
        self._refuse_private_literal()
        resolver = PublicResolver(self._networks)
        host, port = str(self._url.host), self._url.port
        security: dict[str, Any] = {}
        if self._url.scheme == "https":
            security = {"ssl": tls_context(self._options.ca_file), "server_hostname": host}
        try:
            found = await resolver.resolve(host, port or 0, socket.AF_UNSPEC)
            async with asyncio.timeout(self._options.timeout_s):
                # To the address that was checked: a second look-up of the name might give a private
                # one.
                _, writer = await asyncio.open_connection(found[0]["host"], port, **security)
        except PrivateAddressError as error:
            raise _private(self._name, host) from error
        except ssl.SSLCertVerificationError as error:
            raise self._untrusted(error) from error
        except OSError as error:
            raise SinkAwayError(
                f"The webhook {self._name} can't be reached: {describe(error)}",
                remedy="Check `to`, the name server and the firewall.",
            ) from error
        finally:
            await resolver.close()
        writer.close()
        return "the receiver can be reached; a request would be a delivery"

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        """Send the records, and return when the receiver has accepted all of them."""
        records = [record for one in transactions for record in one.records]
        for group in _groups(records):
            await self._deliver(group)
            failpoint("sink.half_written")

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        """Nothing is left to do."""

    async def close(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.close()

    def _refuse_private_literal(self) -> None:
        host = str(self._url.host)
        if (literal := allowed(host, self._networks)) is not None and not literal:
            raise _private(self._name, host)

    def _untrusted(self, error: Exception) -> SinkAwayError:
        return SinkAwayError(
            f"The certificate of the webhook {self._name} is not valid: {describe(error)}",
            remedy="Renew it, or name its authority in `ca_file`.",
        )

    async def _deliver(self, records: Sequence[Record]) -> None:
        lanes: dict[int, list[Record]] = {}
        for record in records:
            lane = zlib.crc32(record.destination.encode() + (record.key or b""))
            lanes.setdefault(lane % self._options.lanes, []).append(record)
        # The group ends when all lanes have: then a record without a key may follow.
        async with asyncio.TaskGroup() as group:
            for number, lane_records in lanes.items():
                group.create_task(self._run(lane_records), name=f"webhook lane {number}")
        if self._failure is not None:
            raise self._failure

    async def _run(self, records: Sequence[Record]) -> None:
        """Send a lane's records. After a failure of any lane, the others finish their current
        request: an interrupted one would be repeated without need.
        """
        for record in records:
            if self._failure is not None:
                return
            try:
                await self._send(record)
            except SinkError as error:
                self._fail(error)

    def _fail(self, error: SinkError) -> None:
        # Several lanes may fail: the first one tells the cause.
        if self._failure is None:
            self._failure = error

    async def _send(self, record: Record) -> None:
        # Before the first attempt: the receiver would only refuse it after the transfer.
        if len(record.value) > self._options.body_bytes_max:
            size = len(record.value)
            raise RefusedError(record, f"{size} bytes are more than `body_bytes_max`")
        deadline = time.monotonic() + RETRY_S
        pause_s = BACKOFF_S
        while True:
            # A receiver that is too busy is so for every lane.
            await asyncio.sleep(max(0.0, self._resume_at - time.monotonic()))
            reason = await self._attempt(record)
            if not reason:
                return
            # Another lane has failed: the session ends, and the next one sends this record again.
            if self._failure is not None or time.monotonic() + pause_s > deadline:
                raise SinkAwayError(f"The webhook {self._name} does not accept records: {reason}")
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311  # no secret
            pause_s = min(pause_s * 2, BACKOFF_S_MAX)

    async def _attempt(self, record: Record) -> str:
        """Send a record once. Returns why it has to be sent again; empty if it is accepted."""
        assert self._http is not None, "the sink is open"
        try:
            async with self._http.post(
                self._url,
                data=record.value,
                headers=self._headers(record),
                # A redirect could lead to a private address, with the signature.
                allow_redirects=False,
            ) as answer:
                if 200 <= answer.status < 300:
                    return ""
                return self._answered(record, answer)
        except aiohttp.ClientConnectorDNSError as error:
            if isinstance(error.os_error, PrivateAddressError):
                raise _private(self._name, str(self._url.host)) from error
            return describe(error)
        except aiohttp.ClientConnectorCertificateError as error:
            raise self._untrusted(error) from error
        except (aiohttp.ClientError, OSError) as error:
            return describe(error)

    def _answered(self, record: Record, answer: aiohttp.ClientResponse) -> str:
        """Interpret an answer that is not a success."""
        status = answer.status
        # 410 is the receiver's way to unsubscribe (Standard Webhooks).
        if status == 410:
            raise DisabledError(f"The webhook {self._name} answered 410: it wants no more requests")
        if 300 <= status < 400:
            raise SinkError(
                f"The webhook {self._name} redirects, which is not followed",
                remedy=f"Set `to` to its new address: {answer.headers.get('Location', 'unknown')}.",
            )
        if status in _MISCONFIGURED:
            raise SinkError(
                f"The webhook {self._name} answered {status}",
                remedy="Check `to`, `secret` and `headers`.",
            )
        if status in {429, 503}:
            wait_s = _retry_after(answer.headers.get("Retry-After", ""))
            self._resume_at = max(self._resume_at, time.monotonic() + wait_s)
        if status >= 500 or status in _PASSING:
            return f"it answered {status}"
        # Without the answer's text, which may repeat the row.
        raise RefusedError(record, f"it answered {status}")

    def _headers(self, record: Record) -> dict[str, str]:
        given = {**record.headers, **self._options.headers}
        # A table's name may contain characters that a header can't.
        given["headrace-id"] = header_safe(record.id)
        given["Content-Type"] = self._options.content_type
        # Last: nothing that a user sets may replace the signature.
        return given | self._signer.headers(record.id, record.value)


def _groups(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    """Consecutive records with a key together, the others one by one."""
    together: list[Record] = []
    for record in records:
        if record.key is None:
            if together:
                yield together
            together = []
            yield [record]
        else:
            together.append(record)
    if together:
        yield together


def _retry_after(text: str) -> float:
    """The seconds of a Retry-After header, a number or a date; 0 if it has neither."""
    if text.isdecimal():
        return min(float(text), RETRY_AFTER_S_MAX)
    try:
        wait_s = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    # Without an upper limit, a wrong clock there would stop the sink for years.
    return min(max(wait_s, 0.0), RETRY_AFTER_S_MAX)


def _private(name: str, host: str) -> SinkError:
    return SinkError(
        f"The webhook {name} would send to {host}, which is not a public address",
        remedy="If that is intended, name its network in `allow_networks`.",
    )
