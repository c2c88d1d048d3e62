"""The function `headrace.wait_for` in a target's PostgreSQL: readers wait until they see an LSN."""

from __future__ import annotations

from typing import Any

import psycopg

from headrace.mirror.visible import VISIBLE
from headrace.postgres.quoting import escape_literal

_SIGNATURE = "headrace.wait_for(pg_lsn,interval,text)"
# Its owner reads the marks, which readers of the tables may not.
_FUNCTION = """
CREATE FUNCTION headrace.wait_for(
  lsn pg_lsn, timeout interval DEFAULT '10 s', source text DEFAULT NULL
) RETURNS pg_lsn LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  deadline timestamptz := clock_timestamp() + timeout;
  seen jsonb;
  reached pg_lsn;
BEGIN
  -- Any other level shows the same moment to all statements of a transaction.
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'headrace.wait_for needs the isolation level READ COMMITTED'
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call it before the transaction.';
  END IF;
  LOOP
    SELECT coalesce(max(m.value), '{{}}')::jsonb INTO seen
      FROM {schema}.marks m WHERE m.key = {key};
    IF source IS NULL AND (SELECT count(*) FROM jsonb_object_keys(seen)) > 1 THEN
      RAISE EXCEPTION 'the copy has several sources: %', (SELECT string_agg(k, ', ' ORDER BY k)
        FROM jsonb_object_keys(seen) k)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Name one: source => ''…''.';
    END IF;
    SELECT '0/0'::pg_lsn + coalesce(max(e.value::numeric), 0) INTO reached
      FROM jsonb_each_text(seen) e WHERE source IS NULL OR e.key = source;
    IF reached >= lsn THEN
      RETURN reached;
    END IF;
    IF clock_timestamp() >= deadline THEN
      RAISE EXCEPTION 'after % readers see everything before %, not %', timeout, reached, lsn
        USING ERRCODE = 'query_canceled',
          HINT = 'Check that the suite and the copy''s process run, or wait longer.';
    END IF;
    PERFORM pg_sleep(0.02);
  END LOOP;
END $body$
"""


async def ensure_wait_for(connection: psycopg.AsyncConnection[Any], schema: str) -> None:
    """Create the function, which every role may call, unless it exists."""
    cursor = await connection.execute("SELECT to_regprocedure(%s) IS NULL", [_SIGNATURE])
    if await cursor.fetchone() != (True,):
        return
    function = _FUNCTION.format(schema=schema, key=escape_literal(VISIBLE))
    for statement in (
        "CREATE SCHEMA IF NOT EXISTS headrace",
        function,
        "GRANT USAGE ON SCHEMA headrace TO PUBLIC",
    ):
        await connection.execute(statement.encode())
