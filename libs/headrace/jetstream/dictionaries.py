"""Reads zstd dictionaries from the state bucket when a message needs one that isn't loaded yet."""

from __future__ import annotations

from dataclasses import dataclass

import zstandard
from nats.js import JetStreamContext
from nats.js.errors import BucketNotFoundError, KeyNotFoundError

from headrace.contract import dictionaries
from headrace.errors import DecodeError, HeadraceError
from headrace.settings import StreamSettings

# The suite's bucket, unless HEADRACE_STATE_BUCKET names another.
STATE_BUCKET = StreamSettings().state


class DictionaryMissingError(HeadraceError):
    """The dictionary that a message was compressed with isn't in the state bucket."""

    remedy = (
        "Dictionaries are kept longer than the stream's messages: find out who deleted this "
        "one, then bootstrap the tables again."
    )


@dataclass(eq=False)
class DictionaryReader:
    _js: JetStreamContext
    _bucket: str = STATE_BUCKET

    async def learn_for(self, data: bytes) -> None:
        """Load the dictionary that this message needs, if it needs one."""
        try:
            dictionary_id = dictionaries.named_by(data)
        except zstandard.ZstdError as error:
            raise DecodeError(f"a message that is not a zstd frame: {error}") from error
        if dictionary_id and not dictionaries.knows(dictionary_id):
            await self.learn(dictionary_id)

    async def learn(self, dictionary_id: int) -> bytes:
        """Read and load one dictionary."""
        try:
            entry = await (await self._js.key_value(self._bucket)).get(
                dictionaries.key(dictionary_id)
            )
        except (BucketNotFoundError, KeyNotFoundError) as error:
            raise DictionaryMissingError(
                f"{dictionaries.key(dictionary_id)} is not in {self._bucket}"
            ) from error
        dictionary = entry.value or b""
        dictionaries.learn(dictionary)
        return dictionary
