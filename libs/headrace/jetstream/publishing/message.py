"""A message on its way into a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Message(Protocol):
    """What can be stored; `advances`: it takes its source's position forward."""

    @property
    def subject(self) -> str: ...

    @property
    def msg_id(self) -> str: ...

    @property
    def payload(self) -> bytes: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def advances(self) -> bool: ...


# A tuple, since a hundred thousand are made in a second: a dataclass would double what making one
# costs.
class Outgoing(NamedTuple):
    """A message to be stored."""

    subject: str
    msg_id: str
    payload: bytes
    headers: Mapping[str, str] = NO_HEADERS
    advances: bool = True
