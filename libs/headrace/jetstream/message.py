"""A message on its way into a stream. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


# Not frozen, which would double what making one costs; nobody changes one.
@dataclass(slots=True)
class Outgoing:
    """A message to be stored; `advances`: it takes its source's position forward."""

    subject: str
    msg_id: str
    payload: bytes
    headers: dict[str, str] = field(default_factory=dict)
    advances: bool = True
