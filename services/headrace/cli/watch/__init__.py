"""`headrace status`, `top` and `tail`: observe a running suite.

Only `cli` may import it. It never changes the suite's state.
"""
