"""The shapes of tables: what the stream says of them, with the facts that only the catalog has."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.contract.selection import Selection
from headrace.contract.values import ValueOptions
from headrace.pgoutput.messages import Relation
from headrace.postgres.facts import RelationNow
from headrace.postgres.relation_facts import RelationFacts
from headrace.process.lifecycle import Scope
from headrace.publisher.shape import Shape
from headrace.settings import Settings


def value_options(settings: Settings) -> ValueOptions:
    """How the operator wants values to be."""
    return ValueOptions(
        encoding=settings.format.encoding,
        arrays=settings.format.arrays,
        json_values=settings.format.json_values,
        int8_as_string=settings.format.int8_as_string,
    )


class Tables:
    def __init__(self, settings: Settings) -> None:
        self._options = value_options(settings)
        self._selection = Selection(
            settings.format.include, settings.format.exclude, settings.format.exclude_columns
        )
        self._facts = RelationFacts(settings, "headrace publisher")

    async def describe(
        self, scope: Scope, relation: Relation, xid: int, known_key: Sequence[str] | None = None
    ) -> Shape | None:
        """The relation's shape in transaction `xid`; None when the service stops before the catalog
        could be asked.
        """
        facts = await self._facts.of(scope, relation, xid)
        return (
            None
            if facts is None
            else Shape.of(relation, facts, self._options, self._selection, known_key)
        )

    async def now(
        self, scope: Scope, relation_ids: Collection[int], xid: int
    ) -> dict[int, RelationNow] | None:
        """Those of the relations that exist, read after transaction `xid`; None when the service
        stops before.
        """
        return await self._facts.now(scope, relation_ids, xid)

    async def close(self) -> None:
        await self._facts.close()
