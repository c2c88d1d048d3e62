"""The confirmer that holds up the slot is named in time, even after repeated restarts; and no
confirmer is named without a cause.
"""

from __future__ import annotations

from headrace.bus.receiver import START_UNKNOWN
from headrace.wal_reader.holding import CALM_LOOKS, RESTARTS_MAX, Holding

EVERYBODY = frozenset({"publisher", "archiver"})


def made(required: frozenset[str] = EVERYBODY) -> Holding:
    return Holding("publisher", required, 10.0)


def test_who_is_behind_for_longer_than_the_patience_is_named_until_the_slot_moves() -> None:
    holding = made()
    assert holding.look(0.0, 100, "archiver", settled=False) is None
    assert holding.look(10.0, 100, "archiver", settled=False) is None
    assert holding.look(10.5, 100, "archiver", settled=False) == "archiver"
    assert holding.look(11.0, 101, "archiver", settled=False) is None
    assert holding.look(21.5, 101, "archiver", settled=False) == "archiver"


def test_a_new_epoch_gives_nobody_more_time() -> None:
    holding = made()
    for second in range(11):
        # Every other second nobody knows yet who is behind.
        assert holding.look(second, 100, "archiver" if second % 2 else None, settled=False) is None
    assert holding.look(11, 100, None, settled=False) == "archiver"


def test_who_begins_again_and_again_is_named_at_once_with_its_reason() -> None:
    holding = made()
    holding.look(0.0, 100, None, settled=True)
    for _ in range(RESTARTS_MAX):
        assert holding.look(0.1, 100, None, settled=True) is None
        holding.restarted("archiver", "no room")
    assert holding.look(0.2, 100, None, settled=False) == "archiver (no room)"
    for look in range(CALM_LOOKS - 1):
        assert holding.look(1.0 + look, 100, None, settled=True) == "archiver (no room)", (
            "an epoch begins like that"
        )
    assert holding.look(9.0, 100, None, settled=True) is None


def test_neither_an_idle_line_nor_the_publisher_nor_an_optional_archive_is_named() -> None:
    holding = made()
    for second in range(100):
        assert holding.look(second, 100, None, settled=True) is None
    assert holding.look(101.0, 100, "archiver", settled=False) is None, "it is behind only now"
    for second in range(102, 200):
        assert holding.look(second, 100, "publisher", settled=False) is None
    optional = made(frozenset({"publisher"}))
    for _ in range(10):
        optional.restarted("archiver", "no room")
        optional.restarted("publisher", "a lost race")
    assert optional.look(1.0, 0, None, settled=False) is None


def test_a_restart_begins_the_count_of_calm_looks_again() -> None:
    holding = made()
    holding.look(0.0, 100, None, settled=True)
    holding.look(0.1, 100, None, settled=True)
    for _ in range(RESTARTS_MAX):
        holding.restarted("archiver", "no room")
    named = [holding.look(1.0, 100, None, settled=True) for _ in range(CALM_LOOKS)]
    assert named == [*["archiver (no room)"] * (CALM_LOOKS - 1), None]


def test_a_publisher_that_is_behind_for_a_moment_in_each_epoch_hides_no_failing_archiver() -> None:
    holding = made()
    holding.look(0.0, 100, None, settled=True)
    for _ in range(RESTARTS_MAX):
        assert holding.look(0.1, 100, "publisher", settled=False) is None
        holding.restarted("archiver", "no room")
    assert holding.look(0.2, 100, "publisher", settled=False) == "archiver (no room)"
    for look in range(CALM_LOOKS - 1):
        named = holding.look(1.0 + look, 100, "publisher", settled=False)
    assert named is None, "the slot waits for the publisher"


def test_a_confirmer_that_only_follows_again_has_not_failed() -> None:
    holding = made()
    holding.look(0.0, 100, None, settled=True)
    for _ in range(RESTARTS_MAX):
        holding.restarted("archiver", START_UNKNOWN)
    assert holding.look(0.1, 100, None, settled=False) is None
    for _ in range(RESTARTS_MAX):
        holding.restarted("archiver", "no room")
        holding.restarted("archiver", START_UNKNOWN)
    assert holding.look(0.2, 100, None, settled=False) == "archiver (no room)"
