"""`headrace init` and `headrace teardown`: create what a suite needs, and remove it."""
