"""Whether the stream contains everything that a source committed before an LSN, up to a sequence.

Taken from the publisher's stored resume point, because no later event of an idle source says it.
Only reads; anything it can't read says nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgpack
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from headrace import log as logs

log = logs.logger("mirror")

# The follower asks for every event of a loaded table: the bucket is read at most this often, and
# less often if the mirror may not read it.
LOOK_S = 0.2
LOOK_S_MAX = 5.0
# A server that refuses says nothing, and the follower waits.
READ_S = 2.0


@dataclass(eq=False)
class Reach:
    _js: JetStreamContext
    _bucket: str
    # By source: the LSN and the sequence up to which everything is in the stream.
    _known: dict[str, tuple[int, int]] = field(default_factory=dict)
    _looked_at: dict[str, float] = field(default_factory=dict)
    # How often the bucket is read.
    look_s: float = LOOK_S

    async def is_behind(self, source: str, lsn: int, stream_seq: int) -> bool:
        """Whether everything that committed before the LSN is in the stream at or before this
        sequence.
        """
        known = self._known.get(source, (0, 0))
        if known[0] < lsn:
            known = await self._newest(source)
        return known[0] >= lsn and known[1] <= stream_seq

    async def complete(self, source: str, stream_seq: int) -> int:
        """The LSN before which everything is known to be in the stream up to this sequence."""
        lsn, last_seq = await self._newest(source)
        if last_seq > stream_seq:
            return 0
        return lsn

    async def _newest(self, source: str) -> tuple[int, int]:
        known = self._known.get(source, (0, 0))
        if time.monotonic() - self._looked_at.get(source, 0.0) >= self.look_s:
            known = await self._read(source) or known
            self._known[source] = known
            self._looked_at[source] = time.monotonic()
        return known

    async def _read(self, source: str) -> tuple[int, int] | None:
        """The LSN that the publisher has confirmed, and its last message then."""
        subject = f"$KV.{self._bucket}.progress.{source}"
        self.look_s = LOOK_S
        try:
            # A direct get may be answered by a replica that is behind. An older progress is true as
            # well, only less far.
            message = await self._js.get_last_msg(f"KV_{self._bucket}", subject, direct=True)
            body = msgpack.unpackb(message.data or b"")
            return int(body["confirmed_lsn"]), int(body["stream_seq"])
        except NotFoundError:
            # Nothing is stored yet.
            return None
        except (NatsError, OSError) as error:
            self.look_s = LOOK_S_MAX
            log.warning(
                "progress_unread", source=source, error=type(error).__name__, permission=subject
            )
        except (ValueError, KeyError, TypeError, msgpack.UnpackException):
            log.warning("progress_not_understood", source=source)
        return None
