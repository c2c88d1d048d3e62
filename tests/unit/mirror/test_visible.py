"""How far readers of a mirror see everything is never more than what they see."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumer import Watermark
from headrace.lsn import Position
from headrace.mirror.table import Phase, Table, TableState
from headrace.mirror.visible import visible_in, visible_of

SHOWN = TableState(
    "public", "t", Phase.FOLLOWING, live=Table("public", "t", ()), since=50, source="s"
)
LANES = {"": Watermark(stream_seq=9), "s": Watermark(Position(100, 3), 9)}


def test_readers_see_everything_up_to_the_last_transaction_or_what_the_publisher_confirmed() -> (
    None
):
    assert visible_in(LANES, [SHOWN], {}, {}, fresh=False) == {"s": 101}
    assert visible_in(LANES, [SHOWN], {"s": 80}, {}, fresh=False) == {"s": 101}
    assert visible_in(LANES, [SHOWN], {"s": 300}, {}, fresh=False) == {"s": 300}


def test_without_an_event_it_is_the_snapshots_moment() -> None:
    assert visible_in({}, [SHOWN], {}, {}, fresh=False) == {"s": 50}
    assert visible_in({}, [replace(SHOWN, phase=Phase.LOADED)], {}, {}, fresh=False) == {}


def test_lanes_of_single_tables_say_nothing_about_the_others() -> None:
    lanes = {"s/public.t": Watermark(Position(900, 0), 9)}
    assert visible_in(lanes, [SHOWN], {}, {}, fresh=False) == {"s": 50}


def test_with_fresh_tables_it_stays_while_one_is_older_than_the_others() -> None:
    older = replace(SHOWN, name="u", phase=Phase.LOADING)
    assert visible_in(LANES, [SHOWN, older], {}, {"s": 70}, fresh=True) == {"s": 70}
    unseen = replace(older, live=None)
    assert visible_in(LANES, [SHOWN, unseen], {}, {"s": 70}, fresh=True) == {"s": 101}


def test_nothing_is_known_of_a_source_whose_positions_have_another_meaning() -> None:
    cut = replace(SHOWN, name="u", phase=Phase.WANTED, diverged_seq=7)
    assert visible_in(LANES, [SHOWN, cut], {"s": 500}, {"s": 70}, fresh=True) == {}
    assert visible_in(LANES, [SHOWN, cut], {"s": 500}, {"s": 70}, fresh=False) == {}


def test_a_target_of_an_earlier_version_says_nothing() -> None:
    assert visible_of({"lane s": "[1, 2, 3]"}) == {}
