"""A mirror seen from an LSN: its marks, and the events that the stream has."""

from __future__ import annotations

import json

import psycopg

from headrace.consumer import Watermark
from headrace.jetstream.dictionaries import DictionaryReader
from headrace.lsn import Position
from headrace.mirror.table import Phase, TableState, encode_mark
from headrace.postgres.connection import PostgresUnreachableError
from headrace.settings import Settings
from headrace.verify import source
from headrace.verify.at_lsn import MirrorProgress, Stream, awaits, place_of, state_of
from tests.support.virtual_nats import STREAMS, VirtualNats

STATE = TableState("public", "a", Phase.FOLLOWING, since=5, source="s")


def put(nats: VirtualNats, *lsns: int, table: str = "a") -> None:
    for lsn in lsns:
        tx = {"xid": lsn, "lsn": lsn, "ts": None, "seq": 0, "last": True}
        names = {"table": table, "schema": "public", "source": "s", "operation": "INSERT"}
        body = json.dumps({**names, "data": {}, "tx": tx}).encode()
        nats.server.put(f"cdc.{table}.insert", body)


def place(
    nats: VirtualNats, lsn: int, state: TableState = STATE, **lanes: tuple[int, int]
) -> MirrorProgress:
    """Lanes by name, as LSN and sequence; `seen` is the one without a source."""
    marks = {
        f"lane {'' if name == 'seen' else name}": encode_mark(Watermark(Position(at, 0), seq))
        for name, (at, seq) in lanes.items()
    }

    async def work() -> MirrorProgress:
        js = nats.client().jetstream()
        stream = Stream(js, STREAMS.cdc, DictionaryReader(js, STREAMS.state))
        return await place_of(stream, marks, state, lsn)

    return nats.do(work())


def test_a_mirror_that_applied_a_commit_at_the_lsn_is_past_it(nats: VirtualNats) -> None:
    put(nats, 10, 20)
    assert place(nats, 20, s=(20, 2), seen=(0, 2)) is MirrorProgress.PAST
    assert place(nats, 21, s=(20, 2), seen=(0, 2)) is MirrorProgress.THERE


def test_a_copy_from_behind_the_lsn_is_past_it(nats: VirtualNats) -> None:
    assert place(nats, 4, seen=(0, 0)) is MirrorProgress.PAST
    assert place(nats, 5, seen=(0, 0)) is MirrorProgress.THERE


def test_an_event_that_is_not_applied_is_behind_the_lsn_or_before_it(nats: VirtualNats) -> None:
    put(nats, 10)
    assert place(nats, 10, seen=(0, 0)) is MirrorProgress.THERE
    assert place(nats, 11, seen=(0, 0)) is MirrorProgress.BEHIND
    assert place(nats, 11, s=(10, 1), seen=(0, 0)) is MirrorProgress.THERE


def test_events_in_the_tables_copy_and_of_other_tables_count_for_nothing(
    nats: VirtualNats,
) -> None:
    put(nats, 3, 4)
    put(nats, 6, table="b")
    assert place(nats, 50, seen=(0, 0)) is MirrorProgress.THERE
    put(nats, 7)
    assert place(nats, 50, seen=(0, 0)) is MirrorProgress.BEHIND
    assert place(nats, 7, seen=(0, 0)) is MirrorProgress.THERE
    assert place(nats, 50, seen=(0, 4)) is MirrorProgress.THERE


def test_a_table_that_is_copied_is_nowhere(nats: VirtualNats) -> None:
    loading = TableState("public", "a", Phase.LOADING, source="s")
    assert place(nats, 50, loading) is MirrorProgress.BOOTSTRAPPING


def test_marks_tell_states_and_waits() -> None:
    waiting = TableState("public", "b", Phase.WANTED, awaited=True)
    marks = {"table a": STATE.encode(), "lane s": encode_mark(Watermark())}
    assert state_of(marks, "a") == STATE
    assert state_of(marks, "b") is None
    assert not awaits(marks)
    assert awaits({**marks, "table b": waiting.encode()})


def test_an_error_of_the_source_says_what_its_server_said() -> None:
    found = source.explained(psycopg.OperationalError("it is gone"), Settings())
    assert isinstance(found, PostgresUnreachableError)
    assert "it is gone" in str(found)


def test_a_verification_waits_no_longer_for_transactions_than_its_hold() -> None:
    assert source.patient(Settings(), 7.0).snapshot.slot_wait_s == 7.0
