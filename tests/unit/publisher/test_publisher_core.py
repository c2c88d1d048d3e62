"""The publisher's pure parts, by hand: the LSN to confirm, the position of an event, the start
after a restart.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace.confirming.relation_shape import RelationShape
from headrace.confirming.transaction_cursor import ProtocolError
from headrace.contract import events
from headrace.contract.values import Encoding, ValueOptions
from headrace.errors import DecodeError
from headrace.lsn import ORIGIN, Position
from headrace.pgoutput import messages
from headrace.postgres.facts import TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.ledger import Ledger
from headrace.publisher.published_event import CompleteUpTo, PublishedEvent
from headrace.publisher.table_events import TableEvents

INT4, TEXT = 23, 25
ID = messages.RelationColumn(True, "id", INT4, -1)
NOTE = messages.RelationColumn(False, "note", TEXT, -1)


def relation(
    number: int,
    name: str,
    identity: str = "d",
    *columns: messages.RelationColumn,
    schema: str = "public",
) -> messages.Relation:
    return messages.Relation(number, schema, name, identity, columns or (ID, NOTE))


def assembler(*relations: messages.Relation, primary: tuple[str, ...] = ("id",)) -> Assembler:
    made = Assembler("slot", Encoding.MSGPACK)
    options = ValueOptions(encoding=Encoding.MSGPACK)
    for one in relations or (relation(1, "orders"), relation(2, "items")):
        table = TableEvents.of(RelationShape.of(one, TableFacts(primary_key=primary), options))
        # Other tests cover schema events.
        table.told = True
        made.learn(table)
    return made


def fed(
    made: Assembler, *received: tuple[int, messages.PgoutputMessage]
) -> list[PublishedEvent | CompleteUpTo]:
    return [item for lsn, message in received for item in made.feed(lsn, message)]


def transaction(
    commit: int,
    *changes: tuple[int, messages.PgoutputMessage],
    end: int | None = None,
    xid: int = 7,
) -> Any:
    return (
        (changes[0][0] if changes else commit, messages.Begin(commit, 0, xid)),
        *changes,
        (commit, messages.Commit(0, commit, commit + 8 if end is None else end, 0)),
    )


def payloads(items: list[PublishedEvent | CompleteUpTo]) -> list[dict[str, Any]]:
    return [events.decode(item.payload) for item in items if isinstance(item, PublishedEvent)]


def insert(number: int, *values: bytes | None) -> messages.Insert:
    return messages.Insert(number, values)


class TestLedger:
    def test_nothing_is_confirmed_before_every_message_up_to_the_mark_is_stored(self) -> None:
        ledger = Ledger()
        ledger.mark(100, 3, whole=True)
        ledger.mark(200, 5, whole=True)
        assert [ledger.confirmable(acked) for acked in range(7)] == [0, 0, 0, 100, 100, 200, 200]
        assert (ledger.waiting, ledger.transactions) == (False, 2)

    def test_a_transaction_without_messages_waits_for_those_before_it(self) -> None:
        ledger = Ledger()
        ledger.mark(100, 3, whole=True)
        ledger.mark(110, 3, whole=True)
        assert ledger.confirmable(2) == 0
        assert ledger.confirmable(3) == 110
        assert ledger.transactions == 2

    def test_keepalives_in_a_row_are_one_mark_and_none_swallows_a_transaction(self) -> None:
        ledger = Ledger()
        for lsn in range(100, 10_100):
            ledger.mark(lsn, 1, whole=False)
        assert len(ledger._marks) == 1
        ledger.mark(20_000, 1, whole=True)
        ledger.mark(20_001, 2, whole=False)
        assert ledger.confirmable(0) == 0
        assert ledger.confirmable(1) == 20_000
        assert ledger.transactions == 1
        assert ledger.waiting

    def test_what_may_be_confirmed_never_goes_back(self) -> None:
        ledger = Ledger()
        ledger.mark(100, 0, whole=True)
        ledger.mark(90, 0, whole=False)
        assert ledger.confirmable(0) == 100


class TestAssembler:
    def test_only_a_transactions_last_event_says_so_and_its_mark_follows_it(self) -> None:
        items = fed(
            assembler(),
            *transaction(500, (400, insert(1, b"1", b"a")), (410, insert(1, b"2", None))),
        )
        assert [(p["tx"]["seq"], p["tx"]["last"]) for p in payloads(items)] == [
            (0, False),
            (1, True),
        ]
        assert items[-1] == CompleteUpTo(508, whole=True)
        assert [event.position for event in items if isinstance(event, PublishedEvent)] == [
            Position(500, 0),
            Position(500, 1),
        ]

    def test_an_event_is_held_back_until_it_is_known_whether_it_is_the_last(self) -> None:
        made = assembler()
        assert fed(made, *transaction(500, (400, insert(1, b"1", b"a")))[:2]) == []

    def test_a_transaction_without_changes_is_a_mark(self) -> None:
        assert fed(assembler(), *transaction(500)) == [CompleteUpTo(508, whole=True)]

    def test_changes_of_one_wal_record_get_numbered_ids_which_begin_anew_at_the_next(self) -> None:
        copied: list[tuple[int, messages.PgoutputMessage]] = [
            (400, insert(1, b"%d" % n, b"a")) for n in range(3)
        ]
        other: list[tuple[int, messages.PgoutputMessage]] = [
            (400, insert(2, b"1", b"b")),
            (400, messages.Delete(1, (b"1", None), None)),
            (410, insert(1, b"9", b"c")),
        ]
        ids = [p["msg_id"] for p in payloads(fed(assembler(), *transaction(500, *copied, *other)))]
        assert ids == [
            "190-orders-insert",
            "190-orders-insert-1",
            "190-orders-insert-2",
            "190-items-insert",
            "190-orders-delete",
            "19a-orders-insert",
        ]

    def test_a_replay_in_a_new_epoch_gives_the_same_ids_and_positions(self) -> None:
        script = transaction(500, *[(400, insert(1, b"%d" % n, b"a")) for n in range(3)])
        assert fed(assembler(), *script) == fed(assembler(), *script)

    def test_a_truncate_of_several_tables_is_an_event_for_each_in_order(self) -> None:
        items = fed(assembler(), *transaction(500, (400, messages.Truncate((2, 1), True, False))))
        assert [
            (p["table"], p["operation"], p["data"], p["tx"]["seq"], p["tx"]["last"])
            for p in payloads(items)
        ] == [
            ("items", "TRUNCATE", {}, 0, False),
            ("orders", "TRUNCATE", {}, 1, True),
        ]

    def test_a_changed_key_comes_with_the_old_one(self) -> None:
        items = fed(
            assembler(),
            *transaction(500, (400, messages.Update(1, (b"1", None), None, (b"2", b"a")))),
        )
        [payload] = payloads(items)
        assert (payload["old"], payload["data"]) == ({"id": 1}, {"id": 2, "note": "a"})

    def test_an_old_row_comes_whole_under_full_identity_and_the_key_from_the_catalog(self) -> None:
        full = relation(1, "orders", "f", ID, messages.RelationColumn(True, "note", TEXT, -1))
        made = assembler(full)
        script = transaction(
            500,
            (400, messages.Update(1, None, (b"1", b"a"), (b"1", b"b"))),
            (410, messages.Delete(1, None, (b"1", b"b"))),
        )
        update, delete = payloads(fed(made, *script))
        assert update["old"] == {"id": 1, "note": "a"}
        assert (delete["data"], delete["old"]) == ({"id": 1, "note": None}, {"id": 1, "note": "b"})

    def test_a_delete_carries_its_key_and_nulls(self) -> None:
        [payload] = payloads(
            fed(assembler(), *transaction(500, (400, messages.Delete(1, (b"1", None), None))))
        )
        assert (payload["data"], payload["old"]) == ({"id": 1, "note": None}, {"id": 1})

    def test_a_column_that_was_not_sent_is_named_and_absent_and_null_is_neither(self) -> None:
        script = transaction(
            500,
            (400, messages.Update(1, None, None, (b"1", messages.UNCHANGED))),
            (410, insert(1, b"2", None)),
        )
        unchanged, null = payloads(fed(assembler(), *script))
        assert (unchanged["data"], unchanged["unchanged"]) == ({"id": 1}, ["note"])
        assert null["data"] == {"id": 2, "note": None}
        assert "unchanged" not in null

    def test_a_keepalive_marks_only_between_transactions(self) -> None:
        made = assembler()
        assert list(made.keepalive(300)) == [CompleteUpTo(300, whole=False)]
        script = transaction(500, (400, insert(1, b"1", b"a")))
        fed(made, *script[:2])
        assert made.cursor.transaction is not None
        assert list(made.keepalive(600)) == []
        fed(made, *script[2:])
        assert list(made.keepalive(600)) == [CompleteUpTo(600, whole=False)]

    def test_positions_strictly_increase_over_transactions_whatever_their_changes_lsns(
        self,
    ) -> None:
        made = assembler()
        items = fed(made, *transaction(500, (450, insert(1, b"1", b"a"))))
        # Began earlier, committed later, and right where the other's commit ended.
        items += fed(
            made, *transaction(508, (100, insert(1, b"2", b"b")), (450, insert(2, b"3", b"c")))
        )
        positions = [item.position for item in items if isinstance(item, PublishedEvent)]
        assert positions == sorted(set(positions))
        assert len({p["msg_id"] for p in payloads(items)}) == 3

    def test_types_and_origins_bring_nothing(self) -> None:
        assert (
            fed(
                assembler(),
                (1, messages.TypeMessage(99999, "public", "mood")),
                (1, messages.Origin(5, "node")),
            )
            == []
        )

    @pytest.mark.parametrize(
        "script",
        [
            [(1, messages.Begin(500, 0, 7)), (1, messages.Begin(600, 0, 8))],
            [(1, messages.Commit(0, 500, 508, 0))],
            [(1, insert(1, b"1", b"a"))],
            [(1, messages.Begin(500, 0, 7)), (1, insert(99, b"1", b"a"))],
            [(1, messages.Truncate((1,), False, False))],
        ],
    )
    def test_messages_in_an_order_that_the_protocol_excludes_stop_it(self, script: Any) -> None:
        with pytest.raises(ProtocolError):
            fed(assembler(), *script)


def test_the_origin_is_before_every_position() -> None:
    assert Position(1, 0) > ORIGIN
    assert not Position(0, 0) > ORIGIN


def test_a_message_of_a_prefix_that_is_not_utf8_is_none_that_can_be_delivered() -> None:
    """An environment may name such a prefix: an error, which `park` puts aside, and which takes no
    place.
    """
    assembler = Assembler(
        "headrace", Encoding.MSGPACK, message_prefixes=frozenset({"\udcff", "\\xff"})
    )
    assembler.feed(0x1000, messages.Begin(0x2000, 0, 700))
    with pytest.raises(DecodeError, match="prefix"):
        assembler.feed(0x1000, messages.LogicalMessage(True, 0x1000, "\udcff", b"x"))
    assert assembler.cursor.position == Position(0x2000, 0)
    assembler.cursor.pass_over()
    assert assembler.cursor.position == Position(0x2000, 1)
