"""The wire contract as code: names, subjects, ids and the forms of values. Pure: no I/O."""
