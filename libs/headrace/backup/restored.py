"""The memory of a restored cluster: the store that it comes from. Pure."""

from __future__ import annotations

# A setting of the restored cluster with the name of its store: it must not write there.
RESTORED_FROM = "headrace.restored_from"
