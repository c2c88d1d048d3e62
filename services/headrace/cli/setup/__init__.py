"""`headrace init` and `headrace teardown`: create what a suite needs, and remove it.

Only `cli` may import it. It never removes what others created.
"""
