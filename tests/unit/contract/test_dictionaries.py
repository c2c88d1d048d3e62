"""A table's dictionary: trained, known by its id, replaced when its events are others."""

from __future__ import annotations

import pytest

from headrace.contract import dictionaries
from headrace.contract.dictionaries import Compressor, UnknownDictionaryError
from headrace.contract.events import decode, encode
from headrace.contract.values import Encoding
from headrace.errors import DecodeError
from headrace.publisher.compression import RATIO_EVENTS, _Table


def payloads(word: str) -> list[bytes]:
    return [
        encode(
            {"subject": f"cdc.{word}.insert", "data": {"id": n, "note": f"{word} {n % 7}"}},
            Encoding.MSGPACK,
        )
        for n in range(1000)
    ]


def test_what_one_compresses_is_decoded_once_its_dictionary_is_known_and_refused_before() -> None:
    trained = dictionaries.train(payloads("users"))
    assert trained is not None
    compressor = Compressor(trained)
    small = compressor.compress(payloads("users")[5])
    assert len(small) < len(payloads("users")[5])
    assert dictionaries.named_by(small) == compressor.dictionary_id
    with pytest.raises(UnknownDictionaryError, match=str(compressor.dictionary_id)):
        decode(small)
    assert dictionaries.learn(trained) == compressor.dictionary_id
    assert decode(small) == decode(payloads("users")[5])


def test_a_message_without_a_dictionary_names_none_and_a_broken_frame_is_a_decoding_error() -> None:
    assert dictionaries.named_by(payloads("users")[0]) == 0
    assert dictionaries.named_by(b"") == 0
    with pytest.raises(DecodeError):
        decode(dictionaries.ZSTD_MAGIC)


def test_samples_without_anything_in_common_give_no_dictionary() -> None:
    assert dictionaries.train([b"x"]) is None


def test_a_table_whose_events_compress_much_worse_than_at_first_asks_for_another_dictionary() -> (
    None
):
    table = _Table()
    for after in (40, 45, 60):
        table.events, table.before, table.after = RATIO_EVENTS, 100, after
        assert table.outgrown() == (after == 60)
    assert not table.outgrown()
