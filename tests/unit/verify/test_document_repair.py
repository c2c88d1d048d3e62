"""How often a repair of documents compares them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast
from unittest import mock

from headrace.verify.check import Patience, Verdict
from headrace.verify.digest import Difference, RowFault
from headrace.verify.search import SearchVerifier
from tests.support.virtual_time import on_virtual_time

EQUAL = Verdict("users", 1)
OTHER = replace(EQUAL, found=(Difference(RowFault.MISSING, ("1",)),), ranges=1)
MORE = replace(EQUAL, found=(Difference(RowFault.MISSING, ("2",)),), ranges=1)
REFUSED = replace(EQUAL, why="it has no key")


async def compared(*verdicts: Verdict) -> tuple[Verdict, int]:
    """The verdict after a repair, and how many comparisons it took of those given."""
    one = SearchVerifier(cast("Any", None), cast("Any", None), cast("Any", None), Patience(30, 1))
    settled = mock.AsyncMock(side_effect=verdicts)
    with mock.patch.object(SearchVerifier, "_settled", settled):
        found = await one.repair("users", lambda _: None)
    return found, settled.await_count


@on_virtual_time
async def test_a_repair_compares_until_nothing_differs() -> None:
    assert await compared(EQUAL) == (EQUAL, 1)
    assert await compared(OTHER, OTHER, MORE, EQUAL) == (EQUAL, 4)


@on_virtual_time
async def test_a_repair_ends_when_the_same_documents_differ_again_or_none_can_be_compared() -> None:
    assert await compared(OTHER, OTHER, OTHER, OTHER, OTHER) == (OTHER, 5)
    assert await compared(OTHER, REFUSED, REFUSED, REFUSED) == (REFUSED, 4)
