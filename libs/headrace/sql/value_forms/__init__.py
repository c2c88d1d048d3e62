"""PostgreSQL's text and binary forms of values, made from whole Arrow columns. Pure.

Each function takes an Arrow array and returns an array of the same length with the bytes of each
value, null where the value is.

Only `sql` may import it. It never guesses: a type or setting without
a proven form is refused (`NotProvenEqualError`).
"""
