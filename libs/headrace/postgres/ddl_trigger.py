"""An optional event trigger that writes DDL into the WAL: drops, renames, rewrites.

Otherwise this DDL leaves no trace there. With the trigger, consumers receive it in order with the
rows; without it, when the catalog is read next. The trigger only calls `pg_logical_emit_message`:
it never fails a DDL statement if no suite runs, and reads no row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from headrace.errors import DecodeError
from headrace.pgoutput.messages import LogicalMessage

PREFIX = "headrace_ddl"
# Not the name of a likely role: a schema named like the user comes first in its search_path.
SCHEMA = "headrace_ddl"
TRIGGERS = ("headrace_ddl_end", "headrace_ddl_drop", "headrace_ddl_rewrite")

# The function fixes its search_path, because it runs in the session of the user that executes the
# DDL. PostgreSQL has no CREATE OR REPLACE for event triggers, so they are dropped first.
INSTALL = f"""
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
COMMENT ON SCHEMA {SCHEMA} IS 'made by headrace init';
CREATE OR REPLACE FUNCTION {SCHEMA}.tell_ddl() RETURNS event_trigger LANGUAGE plpgsql
SET search_path = pg_catalog AS $body$
DECLARE
  told jsonb;
BEGIN
  IF TG_EVENT = 'sql_drop' THEN
    SELECT jsonb_agg(jsonb_build_object('relation', objid::int8)) INTO told
    FROM pg_event_trigger_dropped_objects() WHERE object_type = 'table';
  ELSIF TG_EVENT = 'table_rewrite' THEN
    told := jsonb_build_array(jsonb_build_object('relation',
        pg_event_trigger_table_rewrite_oid()::int8));
  ELSE
    SELECT jsonb_agg(DISTINCT jsonb_build_object('relation', c.oid::int8, 'schema', n.nspname,
        'table', c.relname))
    INTO told FROM pg_event_trigger_ddl_commands() d JOIN pg_class c ON c.oid = d.objid
        AND c.relkind IN ('r', 'p')
    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE d.classid = 'pg_class'::regclass;
  END IF;
  IF told IS NOT NULL THEN
    PERFORM pg_logical_emit_message(true, '{PREFIX}', jsonb_build_object('event', TG_EVENT,
        'tables', told)::text);
  END IF;
END $body$;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_end;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_drop;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_rewrite;
CREATE EVENT TRIGGER headrace_ddl_end ON ddl_command_end WHEN TAG IN ('ALTER TABLE')
  EXECUTE FUNCTION {SCHEMA}.tell_ddl();
CREATE EVENT TRIGGER headrace_ddl_drop ON sql_drop EXECUTE FUNCTION {SCHEMA}.tell_ddl();
CREATE EVENT TRIGGER headrace_ddl_rewrite ON table_rewrite EXECUTE FUNCTION {SCHEMA}.tell_ddl();
"""  # noqa: S608  # only names of this module go in

REMOVE = f"""
DROP EVENT TRIGGER IF EXISTS headrace_ddl_end;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_drop;
DROP EVENT TRIGGER IF EXISTS headrace_ddl_rewrite;
DROP FUNCTION IF EXISTS {SCHEMA}.tell_ddl();
DROP SCHEMA IF EXISTS {SCHEMA};
"""

INSTALLED = "SELECT count(*) = 3 FROM pg_event_trigger WHERE evtname = ANY($1::text[])"


@dataclass(frozen=True, slots=True)
class DdlTable:
    """A table that DDL changed, with its name if it still exists."""

    relation_id: int
    schema: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Ddl:
    """The trigger's report."""

    event: str
    tables: tuple[DdlTable, ...]


def claim(message: LogicalMessage) -> Ddl | None:
    """A message that claims to be the trigger's; None if it isn't, or isn't valid."""
    # The trigger's messages are transactional, so that DDL that is rolled back is never reported.
    if not message.transactional or message.prefix != PREFIX:
        return None
    try:
        return parse(message.content)
    except DecodeError:
        return None


def parse(content: bytes) -> Ddl:
    """Parse the trigger's message; anybody may write messages with its prefix, so it may contain
    anything.
    """
    try:
        body: Mapping[str, Any] = orjson.loads(content)
        tables = tuple(
            DdlTable(
                int(table["relation"]), str(table.get("schema", "")), str(table.get("table", ""))
            )
            for table in body["tables"]
        )
        return Ddl(str(body["event"]), tables)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"a message of prefix {PREFIX} that the trigger did not write") from error
