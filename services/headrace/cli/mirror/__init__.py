"""`headrace mirror` and `headrace verify`: keep a mirror, and prove that it equals its source.

Only `cli` may import it. It never connects to the source to keep a mirror, only to verify one.
"""
