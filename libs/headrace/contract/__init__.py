"""The wire contract as code: names, subjects, ids and forms of values. Pure: no I/O."""
