"""The wire contract as code: names, subjects, IDs and forms of values. Pure.

Any package may import it. It never does I/O, and never writes a form that docs/contract.md does not
describe.
"""
