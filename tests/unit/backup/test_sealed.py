"""A sealed object notices one flipped bit anywhere."""

from __future__ import annotations

import pytest
import zstandard

from headrace.backup.errors import DamagedError
from headrace.backup.sealed import facts_in, seal, unseal


def test_every_single_flipped_bit_is_noticed() -> None:
    sealed = seal(b"some log" * 50, {"commits": 3})
    for place in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedError, match=r"x\.zst is damaged"):
            unseal(bytes(damaged), "x.zst")


def test_every_shorter_object_is_noticed() -> None:
    sealed = seal(b"some log" * 50)
    for size in range(len(sealed)):
        with pytest.raises(DamagedError):
            unseal(sealed[:size], "x.zst")


def test_the_content_is_an_ordinary_zstd_file_and_the_facts_are_at_its_end() -> None:
    content = bytes(range(256)) * 1000
    sealed = seal(content, {"xids": [3, 9]})
    with zstandard.ZstdDecompressor().stream_reader(sealed, read_across_frames=True) as reader:
        assert reader.read() == content
    assert unseal(sealed, "x") == content
    assert facts_in(sealed[-200:], "x") == {"xids": [3, 9]}
    assert facts_in(sealed[-40:], "x") is None
