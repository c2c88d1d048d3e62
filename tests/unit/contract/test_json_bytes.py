"""JSON texts that are held: their form is orjson's, their size their length's."""

from __future__ import annotations

import base64
import sys
import tracemalloc
from typing import Any

import orjson
import pytest

from headrace.contract.json_bytes import compact_json


@pytest.mark.parametrize("value", [{"id": 1, "note": "é\n"}, [1.5, None, True], "", {}])
def test_a_text_is_the_one_that_orjson_writes(value: Any) -> None:
    assert compact_json(value) == orjson.dumps(value)


def test_a_value_without_a_json_form_is_written_by_the_caller_or_refused() -> None:
    written = compact_json({"a": b"\x00"}, lambda value: base64.b64encode(value).decode())  # type: ignore[arg-type]  # only bytes come here
    assert written == b'{"a":"AA=="}'
    with pytest.raises(TypeError):
        compact_json({"a": b"\x00"})


def test_a_held_text_takes_no_more_memory_than_its_length() -> None:
    count = 1_000
    tracemalloc.start()
    try:
        held = [compact_json({"id": number}) for number in range(count)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < sum(map(sys.getsizeof, held)) + 100 * count
