"""Tables of the source as Iceberg tables: what a change does to files, and how files become a cut.

A cut is a state of every table at one LSN, at a transaction's end, which readers see as a whole.
The modules are functions over Arrow: `fold` (changes to one net change per key), `locate` (keys to
files and positions), `data_files` (Arrow to files), `snapshots` (files to metadata) and `catalog`
(metadata to a cut). Nothing here decides when something is done: that is the lake service's.

Only `lake_writer`, `cli`, `console`, `spark`, `sql`, `sql_server` and `verify` may import it. It
never reads the replication stream, and never overwrites or removes a file that a cut may refer to.
"""
