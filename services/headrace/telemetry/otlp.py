"""The suite's metrics and spans as OTLP's protobuf messages. Pure.

The only module that needs the extra `otel`: it is imported when something is to be sent. Names are
those of docs/metrics.md without Prometheus's `_total`, which a collector adds again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import (
    AggregationTemporality,
    HistogramDataPoint,
    Metric,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans

from headrace.metrics.catalogue import FIGURES
from headrace.metrics.counters import Stats, Value
from headrace.metrics.exposition import series
from headrace.metrics.figure import Figure
from headrace.process.tracing import ROOT, Span

_SCOPE = InstrumentationScope(name="headrace")
_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_NS = 1_000_000_000


def metrics(stats_by_service: Mapping[str, Stats], source: str, now_s: float) -> bytes:
    """Every service's current metrics, each service as a resource."""
    request = ExportMetricsServiceRequest()
    for service, stats in sorted(stats_by_service.items()):
        # A cumulative metric names its start: a collector sees a restart by it.
        uptime = stats.get("uptime_seconds", 0)
        began_s = now_s - (uptime if isinstance(uptime, int | float) else 0)
        since = (int(began_s * _NS), int(now_s * _NS))
        found = [
            _metric(figure, stats[figure.key], since) for figure in FIGURES if figure.key in stats
        ]
        scope = ScopeMetrics(
            scope=_SCOPE, metrics=[metric for metric in found if metric is not None]
        )
        request.resource_metrics.append(
            ResourceMetrics(resource=_resource(service, source), scope_metrics=[scope])
        )
    return bytes(request.SerializeToString())


def traces(spans_by_service: Mapping[str, Iterable[Span]], source: str) -> bytes:
    """Spans, each under the service that recorded it."""
    request = ExportTraceServiceRequest()
    for service, spans in sorted(spans_by_service.items()):
        scope = ScopeSpans(scope=_SCOPE, spans=[_span(span) for span in spans])
        request.resource_spans.append(
            ResourceSpans(resource=_resource(service, source), scope_spans=[scope])
        )
    return bytes(request.SerializeToString())


def _resource(service: str, source: str) -> Resource:
    named = {
        "service.name": f"headrace-{service}",
        "service.namespace": "headrace",
        "headrace.source": source,
    }
    return Resource(attributes=_attributes(named))


def _attributes(values: Mapping[str, int | float | str]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_value(value)) for key, value in values.items()]


def _value(value: float | str) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    return AnyValue(double_value=value)


def _metric(figure: Figure, value: Value, since: tuple[int, int]) -> Metric | None:
    """A metric counted from a start time until now; None if it has the wrong type."""
    began, now = since
    metric = Metric(
        name=f"headrace_{figure.key}", description=figure.explain, unit=_unit(figure.key)
    )
    if figure.kind == "histogram":
        # The two more are the sum, and the count above the last bound. A service of another version
        # may report other bounds.
        if not isinstance(value, list) or len(value) != len(figure.bounds) + 2:
            return None
        counts = [int(number) for number in value[1:]]
        point = HistogramDataPoint(
            start_time_unix_nano=began,
            time_unix_nano=now,
            count=sum(counts),
            sum=value[0],
            bucket_counts=counts,
            explicit_bounds=figure.bounds,
        )
        metric.histogram.data_points.append(point)
        metric.histogram.aggregation_temporality = _CUMULATIVE
        return metric
    points = [
        NumberDataPoint(
            start_time_unix_nano=began,
            time_unix_nano=now,
            as_double=number,
            attributes=_attributes(dict(zip(figure.labels, labels, strict=True))),
        )
        for labels, number in series(figure, value)
    ]
    if not points:
        return None
    if figure.kind == "counter":
        metric.sum.data_points.extend(points)
        metric.sum.aggregation_temporality = _CUMULATIVE
        metric.sum.is_monotonic = True
    else:
        metric.gauge.data_points.extend(points)
    return metric


def _unit(key: str) -> str:
    if key.endswith("_seconds"):
        return "s"
    # OpenTelemetry names units as UCUM does, where a byte is By.
    if key.endswith("_bytes"):
        return "By"
    return ""


def _span(span: Span) -> trace_pb2.Span:
    return trace_pb2.Span(
        trace_id=_trace_id(span.frame),
        span_id=_span_id(span.frame, span.name),
        parent_span_id=b"" if span.name == ROOT else _span_id(span.frame, ROOT),
        name=span.name,
        kind=trace_pb2.Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=int(span.began_s * _NS),
        end_time_unix_nano=int(span.ended_s * _NS),
        attributes=_attributes({"headrace.frame": span.frame, **span.attributes}),
    )


def _trace_id(frame: str) -> bytes:
    """The same in every service, and on a replay of the frame: its epoch and its number."""
    epoch, _, seq = frame.partition("-")
    return int(epoch, 16).to_bytes(8, "big") + int(seq).to_bytes(8, "big")


def _span_id(frame: str, name: str) -> bytes:
    # Derived, not random: each service can name the root's span without having received it.
    return hashlib.blake2b(f"{frame} {name}".encode(), digest_size=8).digest()
