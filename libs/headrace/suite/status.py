"""Telemetry's `/status`, as other programs read it."""

from __future__ import annotations

from typing import Any

import aiohttp
import orjson

from headrace.errors import HeadraceError
from headrace.settings import Settings
from headrace.suite.services import TELEMETRY

_TIMEOUT_S = 5


class TelemetryAwayError(HeadraceError):
    """Telemetry doesn't answer."""

    remedy = (
        "Start it (`headrace telemetry`), or give its address with --url, --port or "
        "HEADRACE_TELEMETRY_URL."
    )


def telemetry_address(settings: Settings) -> str:
    """Telemetry's address: the one that is set, or its own port on this machine."""
    return (settings.process.telemetry_url or f"http://127.0.0.1:{TELEMETRY.port}").rstrip("/")


async def fetch(base: str) -> dict[str, Any]:
    """The suite's state, from telemetry at this address."""
    try:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.get(f"{base}/status") as answer,
        ):
            body = orjson.loads(await answer.read())
    except aiohttp.ClientConnectorError as error:
        raise TelemetryAwayError(
            f"telemetry at {base} does not answer: {error.os_error.strerror}"
        ) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise TelemetryAwayError(
            f"telemetry at {base} does not answer: {str(error) or 'time-out'}"
        ) from error
    if not isinstance(body, dict) or "services" not in body:
        raise TelemetryAwayError(f"the program at {base} is not telemetry")
    return body
