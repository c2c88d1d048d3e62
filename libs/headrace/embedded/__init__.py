"""Servers from wheels: PostgreSQL, nats-server and a Java runtime, for `headrace up` and for tests.

Only `backup`, `cli.audit`, `cli.restore`, `cli.standby`, `cli.up`, `pipeline`,
`snapshot_responder`, `spark`, `sql`, `sql_server`, `supervisor` and `testing` may import
it. It never downloads anything, and never stops a server that it did not start.
"""
