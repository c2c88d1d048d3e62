"""`headrace mirror` and `headrace verify`: keep a mirror, and prove that it equals its source."""
