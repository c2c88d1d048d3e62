"""The two transports to an OpenTelemetry collector: OTLP over HTTP, and over gRPC.

Both take the bytes of a request and promise that the collector has accepted it when they return;
any failure is an `OSError` with the reason, and a `RequestRefusedError` if another attempt would
fail, too. gRPC is imported only if it is configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp

from headrace.errors import SettingError, describe
from headrace.settings import OtelSettings, OtlpProtocol

# OpenTelemetry's own default for an export.
TIMEOUT_S = 10.0
_PROTOBUF = "application/x-protobuf"
_METHODS = {
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
# After any other failure that a collector reports, OTLP forbids to send the same request again.
_RETRYABLE_STATUS = frozenset({408, 429, 502, 503, 504})
_RETRYABLE_CODES = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)


class RequestRefusedError(ConnectionError):
    """The collector will not accept this request."""


class Way(Protocol):
    """A way for requests to reach the collector."""

    async def post(self, signal: str, body: bytes) -> None:
        """Send a request for `metrics` or `traces`."""

    async def close(self) -> None:
        """Close the connection."""


class HttpWay:
    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._endpoint = endpoint
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._http = aiohttp.ClientSession(
            timeout=timeout, headers={"Content-Type": _PROTOBUF, **headers}
        )

    async def post(self, signal: str, body: bytes) -> None:
        try:
            async with self._http.post(f"{self._endpoint}/v1/{signal}", data=body) as answer:
                answer.raise_for_status()
        except aiohttp.ClientResponseError as error:
            kind = ConnectionError if error.status in _RETRYABLE_STATUS else RequestRefusedError
            raise kind(describe(error)) from error
        except aiohttp.ClientError as error:
            raise ConnectionError(describe(error)) from error

    async def close(self) -> None:
        await self._http.close()


class GrpcWay:
    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        try:
            import grpc  # noqa: PLC0415  # a few MiB, only if it is configured
        except ImportError as error:
            raise SettingError(
                "OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and gRPC is not installed",
                remedy="Run `pip install 'headrace[otel]'`, or set it to http/protobuf.",
            ) from error
        self._failed = grpc.aio.AioRpcError
        # gRPC's endpoint may have no scheme, and urlsplit would read its host as one.
        parts = urlsplit(endpoint if "//" in endpoint else f"http://{endpoint}")
        # gRPC's target is a host and a port, without credentials.
        place = parts.netloc.rpartition("@")[2]
        if parts.scheme == "https":
            self._channel = grpc.aio.secure_channel(place, grpc.ssl_channel_credentials())
        else:
            self._channel = grpc.aio.insecure_channel(place)
        # Its metadata only accepts lower-case names.
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        # Without a serializer: the bytes are encoded already, as for HTTP.
        self._calls = {
            signal: self._channel.unary_unary(method) for signal, method in _METHODS.items()
        }

    async def post(self, signal: str, body: bytes) -> None:
        try:
            await self._calls[signal](body, timeout=TIMEOUT_S, metadata=self._metadata)
        except self._failed as error:
            code = error.code().name
            kind = ConnectionError if code in _RETRYABLE_CODES else RequestRefusedError
            raise kind(f"{code}: {error.details()}") from error

    async def close(self) -> None:
        await self._channel.close()


def way(settings: OtelSettings, endpoint: str, headers: Mapping[str, str]) -> Way:
    """The configured transport."""
    kind = GrpcWay if settings.protocol is OtlpProtocol.GRPC else HttpWay
    # HTTP appends `/v1/…`, and two slashes would be another path.
    return kind(endpoint.rstrip("/"), headers)
