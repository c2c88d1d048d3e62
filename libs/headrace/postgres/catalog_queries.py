"""The queries of the catalog. Text only: `catalog` runs them and reads their rows.

Owns what they have in common: which index is a key, which type a domain is based on, which value
older rows have in a newer column, and where a relation's rows are stored.
"""

from __future__ import annotations

from headrace.postgres.type_definitions import DEFINITIONS_OF

# The subscript handler identifies arrays: types such as name and point have an element type too. An
# array's text is separated by its element type's delimiter.
TYPES = """
WITH RECURSIVE wanted AS (
    SELECT t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typsubscript, t.typdelim
    FROM pg_type t WHERE t.oid = ANY($1::oid[])
  UNION
    SELECT t.oid, t.typtype, t.typbasetype, t.typelem, t.typcategory, t.typsubscript, t.typdelim
    FROM pg_type t JOIN wanted w ON t.oid IN (w.typbasetype, w.typelem)
)
SELECT w.oid, w.typtype::text, w.typbasetype, w.typelem,
       w.typsubscript::oid = 'array_subscript_handler'::regproc::oid AS is_array,
       coalesce(e.typdelim, w.typdelim)::text AS delimiter
FROM wanted w LEFT JOIN pg_type e ON e.oid = w.typelem
"""


def _index_columns(which: str) -> str:
    """The key columns of an index of the relation `of`, selected by `which`, in order and without
    INCLUDEd ones.
    """
    return f"""
SELECT array_agg(a.attname::text ORDER BY k.ord) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, ord)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = of.oid AND k.ord <= i.indnkeyatts AND {which}
"""


# All queries for keys use these.
_PRIMARY_KEY = _index_columns("i.indisprimary")
_IDENTITY_INDEX = _index_columns("i.indisreplident")
# The index that pgoutput flags, where `of` is pg_class: a deferrable primary key is no replica
# identity.
_IDENTITY = _index_columns(
    "CASE of.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate WHEN 'i' THEN "
    "i.indisreplident END"
)
ROW_KEYS = f"""
SELECT of.oid::int8 AS relation_id, ({_PRIMARY_KEY}) AS primary_key,
    ({_IDENTITY_INDEX}) AS identity_index
FROM unnest($1::oid[]) AS of(oid)
"""


def base_type(oid: str) -> str:
    """The name of a domain's base type, through domains of domains; for an array of a domain, the
    array of that base type. NULL for any other type, and for an array of a domain over an array,
    whose text no built-in type has.
    """
    return f"""
(WITH RECURSIVE base(oid, modifier, depth, arrays) AS (
    SELECT {oid}::oid, -1, 0, 0
  UNION ALL
    SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END, t.typtypmod,
        b.depth + 1,
           b.arrays + (t.typtype <> 'd')::int
    FROM base b JOIN pg_type t ON t.oid = b.oid
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem IN (SELECT oid FROM pg_type
        WHERE typtype = 'd'))
) SELECT format_type(b.oid, nullif(b.modifier, -1)) || repeat('[]', b.arrays)
  FROM (SELECT * FROM base ORDER BY depth DESC LIMIT 1) AS b JOIN pg_type t ON t.oid = b.oid
  WHERE b.depth > 0 AND b.arrays + (t.typcategory = 'A')::int < 2)
"""


# A table in a publication's table list has a row with its own OID, which a later membership doesn't
# share.
_MEMBERSHIP = """
SELECT r.oid::int8 FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
WHERE p.pubname = $1 AND (r.prrelid = of.oid OR r.prrelid IN (SELECT relid
    FROM pg_partition_ancestors(of.oid)))
UNION ALL
SELECT n.oid::int8 FROM pg_publication p JOIN pg_publication_namespace n ON n.pnpubid = p.oid
JOIN pg_class c ON c.relnamespace = n.pnnspid WHERE p.pubname = $1 AND c.oid = of.oid
ORDER BY 1 LIMIT 1
"""

# The value in rows that are older than the column: a constant default fills it in without writing a
# row. As bytes, because text of a SQL_ASCII database may not be valid. Names of objects have
# another text in another session.
_MISSING = f"""
CASE WHEN a.atthasmissing AND coalesce({base_type("a.atttypid")}, format_type(a.atttypid,
    NULL)) NOT LIKE 'reg%' THEN
    convert_to(array_to_string(a.attmissingval, ''),
               CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) END
"""

# Whether adding the column gave rows a value; for a partitioned table, its partitions know.
_FILLED = """
(a.atthasmissing OR d.oid IS NOT NULL OR a.attidentity <> '' OR a.attgenerated <> '' OR EXISTS (
    SELECT FROM pg_partition_tree(a.attrelid) t JOIN pg_attribute leaf ON leaf.attrelid = t.relid
    WHERE leaf.attname = a.attname AND leaf.atthasmissing))
"""

SHAPES = f"""
SELECT of.oid::int8 AS relation_id, a.attname AS name, a.attnum AS number,
    a.atttypid::int8 AS type_oid,
       a.atttypmod AS modifier, format_type(a.atttypid, a.atttypmod) AS data_type,
           NOT a.attnotnull AS is_nullable,
       {base_type("a.atttypid")} AS base_type,
       pg_get_expr(d.adbin, d.adrelid) AS column_default, {_FILLED} AS filled,
           {_MISSING} AS missing,
       of.relnatts AS last_number, of.relreplident = 'f'
           OR a.attname = ANY(identity.columns) AS is_key
FROM pg_class of
CROSS JOIN LATERAL (SELECT coalesce(({_IDENTITY}), '{{}}') AS columns) AS identity
JOIN pg_attribute a ON a.attrelid = of.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE of.oid = ANY($1::oid[]) ORDER BY of.oid, a.attnum
"""

# A rewrite gives a table (each partition of it) a new file, and its column a new row in
# pg_attribute: the publisher decides what that means. Partitions follow by OID, with an `a` and the
# transaction that attached it if one was not created as a partition: rows from before that have no
# events. A leading `u` marks a table that may become unlogged, which a table in a publication's
# list can't. In three parts, because an earlier version stored it like this and expects it after a
# downgrade.
_STORAGE_OF = """
CASE WHEN EXISTS (SELECT FROM pg_publication_rel r WHERE r.prrelid = c.oid) THEN '' ELSE 'u' END ||
(SELECT string_agg(concat_ws(':', p.oid, p.relfilenode, p.xmin, p.reltoastrelid), ','
    ORDER BY p.oid) FROM pg_class p
        WHERE p.oid = c.oid OR (c.relkind = 'p' AND p.oid IN (SELECT relid
            FROM pg_partition_tree(c.oid))))
       || '/' ||
       (SELECT md5(string_agg(a.xmin::text, ',' ORDER BY a.attnum)) FROM pg_attribute a
           WHERE a.attrelid = c.oid)
       || '/' || coalesce(
       (SELECT string_agg(i.inhrelid::int8 || CASE WHEN i.xmin = a.xmin THEN ''
           ELSE 'a' || i.xmin END, ',' ORDER BY i.inhrelid)
        FROM pg_partition_tree(c.oid) t JOIN pg_inherits i ON i.inhrelid = t.relid
        JOIN pg_attribute a ON a.attrelid = t.relid AND a.attname = 'tableoid'
            WHERE c.relkind = 'p'), '')
"""

STORAGE = f"""
SELECT c.oid::int8 AS relation_id, {_STORAGE_OF} AS storage,
    coalesce({DEFINITIONS_OF}, '') AS definitions FROM pg_class c WHERE c.oid = ANY($1::oid[])
"""

# The content of the publication, and the version of its definition.
PUBLICATION = """
SELECT concat_ws(',', CASE WHEN pubinsert THEN 'insert' END, CASE WHEN pubupdate THEN 'update' END,
                 CASE WHEN pubdelete THEN 'delete' END, CASE WHEN pubtruncate THEN 'truncate' END)
       || '/' || xmin::text
FROM pg_publication WHERE pubname = $1
"""

# Queried after the snapshot: the commit records of everything visible in it are before this LSN.
PLACE = """
(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
    ELSE pg_current_wal_insert_lsn() END - '0/0'::pg_lsn)
"""

# As IDENTIFY_SYSTEM shows it. A standby doesn't tell its timeline in SQL.
SERVER = """
SELECT (SELECT system_identifier FROM pg_control_system()) AS system_id,
    CASE WHEN NOT pg_is_in_recovery() THEN
        ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 END AS timeline
"""

PUBLISHED = """
SELECT c.oid::int8 AS relation_id, n.nspname AS schema, c.relname AS name,
    c.relreplident::text AS replica_identity,
       p.attnames::text[] AS columns, p.rowfilter AS row_filter, c.relkind::text AS kind
FROM pg_publication_tables p
JOIN pg_namespace n ON n.nspname = p.schemaname
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
WHERE p.pubname = $1 ORDER BY 2, 3
"""

# For the relations of a list.
KEYS = f"""
SELECT of.oid::int8 AS relation_id, ({_PRIMARY_KEY}) AS primary_key, ({_MEMBERSHIP}) AS membership
FROM unnest($2::oid[]) AS of(oid)
"""

# The stream contains the low half of a transaction id; the nearest full id is meant. In the order
# of the log a transaction ends with its commit record; for other sessions only when it is removed
# from the list of running transactions: with a slow synchronous standby that may be much later.
_SEES = """
SELECT pg_visible_in_snapshot(
    (top + (($3::int8 - top + 2147483648) & 4294967295) - 2147483648)::text::xid8, snapshot)
FROM (SELECT s AS snapshot, pg_snapshot_xmax(s)::text::int8 AS top
    FROM pg_current_snapshot() AS s) AS now
"""

# All in one statement, and therefore one snapshot: a row for each column, or one without any.
FACTS = f"""
SELECT ({_SEES}) AS seen, ({_PRIMARY_KEY}) AS primary_key, ({_MEMBERSHIP}) AS membership,
       (SELECT i.xmin::text::int8 FROM pg_index i WHERE i.indrelid = of.oid
           AND i.indisprimary) AS key_defined_by,
       (SELECT array_agg(format_type(w.oid, nullif(w.modifier, -1)) ORDER BY w.place)
        FROM unnest($4::oid[], $5::int4[]) WITH ORDINALITY AS w(oid, modifier,
            place)) AS type_names,
       (SELECT array_agg({base_type("w.oid")} ORDER BY w.place)
        FROM unnest($4::oid[]) WITH ORDINALITY AS w(oid, place)) AS base_types,
       a.attname AS name, a.attnum AS number, NOT a.attnotnull AS is_nullable,
           a.xmin::text::int8 AS defined_by,
       pg_get_expr(d.adbin, d.adrelid) AS column_default, {_FILLED} AS filled,
           {_MISSING} AS missing,
       (SELECT c.relnatts FROM pg_class c WHERE c.oid = of.oid) AS last_number,
       (SELECT {_STORAGE_OF} FROM pg_class c WHERE c.oid = of.oid) AS storage,
       ({PUBLICATION}) AS publication, {PLACE}::int8 AS lsn,
       pg_snapshot_xmax(pg_current_snapshot())::text::int8 & 4294967295 AS next_xid
FROM (SELECT $2::oid AS oid) AS of
LEFT JOIN pg_attribute a ON a.attrelid = of.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
"""

# Relations that another catalog row describes.
NOW = f"""
SELECT ({_SEES.replace("$3", "$2")}) AS seen, of.oid::int8 AS relation_id, n.nspname AS schema,
    c.relname AS name,
       CASE WHEN c.oid IS NOT NULL THEN {_STORAGE_OF} END AS storage, {PLACE}::int8 AS lsn
FROM unnest($1::oid[]) AS of(oid) LEFT JOIN pg_class c ON c.oid = of.oid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
"""

# A new table's file has the table's own number.
FILES = f"""
SELECT c.oid::int8 AS relation_id, c.relkind = 'r' AND c.relfilenode = c.oid AS first,
       (SELECT string_agg(concat_ws(':', p.oid, p.relfilenode), ',' ORDER BY p.oid) FROM pg_class p
        WHERE p.oid = c.oid OR (c.relkind = 'p' AND p.oid IN (SELECT relid
            FROM pg_partition_tree(c.oid)))) AS text,
       ARRAY(SELECT r.xmin::text::int8 FROM pg_publication_rel r
        WHERE r.prrelid = c.oid OR r.prrelid IN (SELECT relid FROM pg_partition_ancestors(c.oid))
        UNION ALL SELECT n.xmin::text::int8 FROM pg_publication_namespace n
        WHERE n.pnnspid = c.relnamespace) AS joined,
       pg_snapshot_xmax(pg_current_snapshot())::text::int8 AS next_xid,
       {PLACE}::int8 AS lsn
FROM pg_class c WHERE c.oid = ANY($1::oid[])
"""
