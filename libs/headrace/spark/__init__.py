"""A table by consistent, parallel COPY: the snapshot that is held, its plan, its rows, and a
DataFrame of them.

    from headrace.spark.table_source import TableSource

    spark.dataSource.register(TableSource)
    users = spark.read.format("headrace.table").option("table", "users").load()

The snapshot-responder's job is built on the same parts. Importing this package imports none of
them.
"""
