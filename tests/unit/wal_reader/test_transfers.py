"""How long traced frames are on the bus."""

from __future__ import annotations

from headrace.process.tracing import Traces
from headrace.wal_reader import transfers
from headrace.wal_reader.transfers import Transfers


def tracing(every: int = 1) -> tuple[Traces, Transfers]:
    traces = Traces()
    traces.every = every
    return traces, Transfers(traces)


def frames(traces: Traces) -> list[str]:
    return [span.frame for span in traces.taken()]


def test_a_frame_is_reported_once_by_the_first_that_consumed_it_with_its_size() -> None:
    traces, one = tracing()
    for seq in (1, 2, 3):
        one.sent(10, seq, 100 + seq)
    one.consumed(10, 2, "publisher")
    spans = traces.taken()
    assert [(span.name, span.frame) for span in spans] == [("transfer", "a-1"), ("transfer", "a-2")]
    assert spans[1].attributes == {"bytes": 102, "confirmer": "publisher"}
    assert spans[0].began_s <= spans[0].ended_s
    one.consumed(10, 2, "archiver")
    assert traces.taken() == []
    one.consumed(10, 3, "archiver")
    assert frames(traces) == ["a-3"]


def test_frames_of_an_earlier_epoch_are_forgotten_and_those_of_a_later_one_kept() -> None:
    traces, one = tracing()
    one.sent(10, 1, 100)
    one.sent(11, 5, 100)
    one.consumed(11, 4, "publisher")
    assert frames(traces) == []
    one.consumed(11, 5, "publisher")
    assert frames(traces) == ["b-5"]
    one.consumed(10, 1, "publisher")
    assert frames(traces) == []


def test_only_traced_frames_with_content_are_timed() -> None:
    traces, one = tracing(every=2)
    for seq in (0, 1, 2):
        one.sent(10, seq, 100)
    one.consumed(10, 2, "publisher")
    assert frames(traces) == ["a-2"]


def test_what_a_lost_confirmer_leaves_behind_is_bounded() -> None:
    traces, one = tracing()
    for seq in range(1, transfers.FRAMES_MAX + 1):
        one.sent(10, seq, 100)
    one.sent(10, transfers.FRAMES_MAX + 1, 100)
    one.consumed(10, transfers.FRAMES_MAX + 1, "publisher")
    assert frames(traces) == [f"a-{transfers.FRAMES_MAX + 1}"]
