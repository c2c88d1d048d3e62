"""The suite exports its metrics, and traces of single frames, to an OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    add_MetricsServiceServicer_to_server,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headrace.embedded.nats import EmbeddedNats
from headrace.process import tracing
from headrace.process.health import Health, serving
from headrace.process.lifecycle import Scope
from headrace.settings import load
from headrace.telemetry.otlp_export import OtlpExport
from headrace.telemetry.suite import SuiteStatus
from headrace.testing.database import Database
from headrace.testing.line import SETTINGS
from headrace.testing.names import Names
from headrace.testing.plugin import OwnNats
from headrace.testing.process import service
from headrace.testing.suite import Suite

ROWS = 250
PROTOCOLS = ["http/protobuf", "grpc"]
AWAY = (503, grpc.StatusCode.UNAVAILABLE)
REFUSED = (404, grpc.StatusCode.UNIMPLEMENTED)
GOOD = (200, grpc.StatusCode.OK)


class Collector:
    """A receiver by HTTP and by gRPC: what came, by resource."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, Metric]] = {}
        self.spans: dict[bytes, dict[str, tuple[str, Span]]] = {}
        self.headers: set[str] = set()
        # The answer to spans, of HTTP and of gRPC; how many requests had another one than success.
        self.spans_answer = GOOD
        self.refused = 0

    async def on_metrics(self, request: web.Request) -> web.Response:
        self.headers.add(request.headers.get("X-Tenant", ""))
        self._take_metrics(ExportMetricsServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for resource in request.resource_metrics:
            name = resource.resource.attributes[0].value.string_value
            self.metrics.setdefault(name, {}).update(
                {m.name: m for m in resource.scope_metrics[0].metrics}
            )

    async def on_traces(self, request: web.Request) -> web.Response:
        if self.spans_answer[0] != 200:
            self.refused += 1
            return web.Response(status=self.spans_answer[0])
        self._take_spans(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            name = resource.resource.attributes[0].value.string_value
            for span in resource.scope_spans[0].spans:
                self.spans.setdefault(span.trace_id, {})[span.name] = (name, span)

    # the method that OTLP's services have
    async def Export(self, request: Any, context: Any) -> Any:
        """Of both gRPC services."""
        self.headers.add(dict(context.invocation_metadata()).get("x-tenant", ""))
        if isinstance(request, ExportMetricsServiceRequest):
            self._take_metrics(request)
            return ExportMetricsServiceResponse()
        if self.spans_answer[1] is not grpc.StatusCode.OK:
            self.refused += 1
            await context.abort(self.spans_answer[1])
        self._take_spans(request)
        return ExportTraceServiceResponse()

    @contextlib.asynccontextmanager
    async def listening(self, protocol: str = "http/protobuf") -> AsyncIterator[str]:
        if protocol == "grpc":
            server = grpc.aio.server()
            add_MetricsServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated code
            add_TraceServiceServicer_to_server(self, server)  # type: ignore[no-untyped-call]  # generated code
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                await server.stop(None)
            return
        app = web.Application()
        app.router.add_post("/v1/metrics", self.on_metrics)
        app.router.add_post("/v1/traces", self.on_traces)
        async with serving(app, "127.0.0.1", 0) as port:
            yield f"http://127.0.0.1:{port}"

    @property
    def events(self) -> float:
        found = self.metrics.get("headrace-publisher", {}).get("headrace_cdc_events")
        return found.sum.data_points[0].as_double if found else 0


def environment(
    database: Database, server: EmbeddedNats, names: Names, endpoint: str
) -> dict[str, str]:
    return {
        **SETTINGS,
        **database.environment(server.url),
        "HEADRACE_SLOT": names.slot,
        "HEADRACE_STATS_INTERVAL_S": "0.1",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Tenant=water",
        "HEADRACE_OTEL_INTERVAL_S": "0.2",
        "HEADRACE_OTEL_TRACE_EVERY": "1",
    }


@contextlib.asynccontextmanager
async def exporting(collector: Collector, protocol: str) -> AsyncIterator[OtlpExport]:
    """Telemetry's export to a collector, at short intervals."""
    async with collector.listening(protocol) as endpoint, asyncio.TaskGroup() as tasks:
        settings = load(
            {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "HEADRACE_OTEL_INTERVAL_S": "0.1"}
        )
        scope = Scope("telemetry", settings.process, tasks, Health("telemetry"))
        export = OtlpExport(scope, settings, SuiteStatus(0.0, 1.0), endpoint)
        scope.spawn("export", export.run())
        try:
            async with asyncio.timeout(60):
                yield export
        finally:
            scope.stop()


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  # a collector has no event
        await asyncio.sleep(0.02)


def span(number: int) -> tuple[tracing.Span, ...]:
    return (tracing.Span("change", f"7-{number}", 1.0, 2.0),)


def frames(collector: Collector) -> set[int]:
    """The numbers of the frames of which there is a span."""
    return {int.from_bytes(trace[8:], "big") for trace in collector.spans}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_spans_wait_for_a_collector_that_takes_only_metrics_for_a_while(
    protocol: str,
) -> None:
    collector = Collector()
    collector.spans_answer = AWAY
    async with exporting(collector, protocol) as export:
        export.hear("publisher", span(1))
        await until(lambda: collector.refused >= 2)
        assert collector.metrics
        export.hear("publisher", span(2))
        collector.spans_answer = GOOD
        await until(lambda: frames(collector) == {1, 2})


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_spans_that_a_collector_will_never_take_do_not_hold_up_later_ones(
    protocol: str,
) -> None:
    collector = Collector()
    collector.spans_answer = REFUSED
    async with exporting(collector, protocol) as export:
        export.hear("publisher", span(1))
        await until(lambda: collector.refused == 1)
        collector.spans_answer = GOOD
        export.hear("publisher", span(2))
        await until(lambda: frames(collector) == {2})


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_collector_gets_every_services_figures_and_one_trace_for_a_frame_from_commit_to_acknowledgement(
    protocol: str, database: Database, own_nats: OwnNats, names: Names, tmp_path: Path
) -> None:
    server, collector = await own_nats(), Collector()
    await database.execute(
        "CREATE TABLE traced (id int PRIMARY KEY); CREATE TABLE more (id int PRIMARY KEY)"
    )
    await database.execute("CREATE PUBLICATION headrace FOR ALL TABLES")
    async with collector.listening(protocol) as endpoint:
        settings = environment(database, server, names, endpoint) | {
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol
        }
        async with Suite(settings, tmp_path) as suite, service(settings, "telemetry"):
            await suite.logged("publisher", "epoch_joined")
            await database.execute(f"INSERT INTO traced SELECT generate_series(1, {ROWS})")
            async with asyncio.timeout(60):
                # One more event: the table's schema. Spans are sent once: a frame that comes before
                # telemetry hears the services has none, so that there are more frames until one's
                # have all come.
                frames = itertools.count(1)
                while collector.events < ROWS + 1 or not any(
                    len(t) == 3 for t in collector.spans.values()
                ):
                    await database.execute("INSERT INTO more VALUES ($1)", next(frames))
                    await asyncio.sleep(0.2)
    assert {
        "headrace-publisher",
        "headrace-wal-reader",
        "headrace-telemetry",
    } <= collector.metrics.keys()
    publisher = collector.metrics["headrace-publisher"]
    assert publisher["headrace_cdc_events"].sum.is_monotonic
    lag = publisher["headrace_ack_lag_seconds"].histogram.data_points[0]
    assert lag.count == sum(lag.bucket_counts) >= 1
    assert len(lag.bucket_counts) == len(lag.explicit_bounds) + 1
    tables = {
        tuple(label.value.string_value for label in point.attributes): point.as_double
        for point in publisher["headrace_table_events"].sum.data_points
    }
    assert tables["traced", "insert"] == ROWS
    assert collector.headers == {"water"}
    trace = next(trace for trace in collector.spans.values() if len(trace) == 3)
    assert {name: service for name, (service, _) in trace.items()} == {
        "change": "headrace-publisher",
        "publish": "headrace-publisher",
        "transfer": "headrace-wal-reader",
    }
    change, publish, transfer = (trace[name][1] for name in ("change", "publish", "transfer"))
    assert not change.parent_span_id
    assert publish.parent_span_id == transfer.parent_span_id == change.span_id
    assert (
        change.start_time_unix_nano <= transfer.start_time_unix_nano <= publish.end_time_unix_nano
    )
    assert change.end_time_unix_nano == publish.end_time_unix_nano


async def test_a_collector_that_is_away_is_one_warning_by_grpc_too(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server, collector = await own_nats(), Collector()
    async with collector.listening("grpc") as endpoint:
        pass
    settings = environment(database, server, names, endpoint) | {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"
    }
    async with service(settings, "telemetry") as telemetry:
        await telemetry.logs("otlp_not_taken")
        assert "UNAVAILABLE" in str(telemetry.events("otlp_not_taken")[0])
        assert (await telemetry.get("/health"))[0] == 200
        assert await telemetry.stop() == 0


async def test_a_collector_that_is_away_is_one_warning_and_nothing_else(
    database: Database, own_nats: OwnNats, names: Names
) -> None:
    server, collector = await own_nats(), Collector()
    async with collector.listening() as endpoint:
        pass
    port = endpoint.rpartition(":")[2]
    async with service(environment(database, server, names, endpoint), "telemetry") as telemetry:
        await telemetry.logs("otlp_not_taken")
        await asyncio.sleep(1)
        assert len(telemetry.events("otlp_not_taken")) == 1
        app = web.Application()
        app.router.add_post("/v1/metrics", collector.on_metrics)
        async with serving(app, "127.0.0.1", int(port)):
            await telemetry.logs("otlp_taken")
        assert (await telemetry.get("/health"))[0] == 200
        assert await telemetry.stop() == 0
