"""Describes relations: completes the stream's messages with the facts that only the catalog has.

A question of a change store raises `ReadingAbandonedError` if the service stops before the catalog
answers. Change stores let it pass: `EpochFollower` takes nothing more then.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.confirming.relation_shape import RelationShape
from headrace.contract.selection import Selection
from headrace.contract.values import ValueOptions
from headrace.pgoutput.messages import Relation
from headrace.postgres.facts import RelationNow
from headrace.postgres.relation_facts import RelationFacts
from headrace.process.lifecycle import Scope
from headrace.settings import Settings


def value_options(settings: Settings) -> ValueOptions:
    """The forms of values that the operator chose."""
    return ValueOptions(
        encoding=settings.format.encoding,
        arrays=settings.format.arrays,
        json_values=settings.format.json_values,
        int8_as_string=settings.format.int8_as_string,
    )


class Relations:
    """Asks the catalog of the source; `application_name` is how PostgreSQL shows the connection."""

    def __init__(self, settings: Settings, application_name: str, options: ValueOptions) -> None:
        form = settings.format
        self._options = options
        self._selection = Selection(form.include, form.exclude, form.exclude_columns)
        self._facts = RelationFacts(settings, application_name)

    async def describe(self, scope: Scope, relation: Relation, xid: int) -> RelationShape:
        """The relation's shape in transaction `xid`."""
        # The stream names no primary key and no defaults, and the catalog may be ahead of it.
        facts = await self._facts.of(scope, relation, xid)
        return RelationShape.of(relation, facts, self._options, self._selection)

    async def now(
        self, scope: Scope, relation_ids: Collection[int], xid: int
    ) -> dict[int, RelationNow]:
        """The existing ones of these relations, read after transaction `xid`."""
        return await self._facts.now(scope, relation_ids, xid)

    async def close(self) -> None:
        await self._facts.close()
