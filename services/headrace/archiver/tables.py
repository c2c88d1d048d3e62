"""The forms of tables: what the stream says of them, with the facts that only the catalog has."""

from __future__ import annotations

from headrace.archiver.forms import Form
from headrace.contract.selection import Selection
from headrace.pgoutput.messages import Relation
from headrace.postgres.relation_facts import RelationFacts
from headrace.process.lifecycle import Scope
from headrace.settings import Settings


class Tables:
    def __init__(self, settings: Settings) -> None:
        self._selection = Selection(
            settings.format.include, settings.format.exclude, settings.format.exclude_columns
        )
        self._facts = RelationFacts(settings, "headrace archiver")

    async def describe(self, scope: Scope, relation: Relation, xid: int) -> Form | None:
        """The relation's form in transaction `xid`; None when the service stops before the catalog
        could be asked.
        """
        facts = await self._facts.of(scope, relation, xid)
        return None if facts is None else Form.of(relation, facts, self._selection)

    async def close(self) -> None:
        await self._facts.close()
