"""A message on its way into a stream. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Message(Protocol):
    """A message to store; `advances`: it moves its source's position forward."""

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


# A tuple, because a hundred thousand are created per second: a dataclass would double the cost.
class Outgoing(NamedTuple):
    """A message to be stored."""

    subject: str
    msg_id: str
    payload: bytes
    headers: Mapping[str, str] = NO_HEADERS
    advances: bool = True
