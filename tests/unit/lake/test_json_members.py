"""The members of a row's JSON have their own text, to the digit and the space."""

from __future__ import annotations

import json

import orjson
import pytest

from headrace.errors import DecodeError
from headrace.lake.json_members import Members

DEEP = '{"k": ' + '["]}",' * 40 + "1.50" + "]" * 40 + "}"


@pytest.mark.parametrize(
    "value",
    [
        "1",
        "-1.50",
        "1e400",
        "true",
        '"x"',
        '"},]{[:\\\\"',
        '"\\ud800"',
        "[]",
        "{}",
        "  [ 1 ,\n 2.50 ]  ",
        '{"a": {"n": [1, 2.5, null, true, "}"]}, "b": 1}',
        '{"k": 1, "k": 2}',
        "[" * 501 + "]" * 501,
        DEEP,
    ],
)
@pytest.mark.parametrize(
    "form", ['{{"a":{}}}', '{{"x":"{{","a":{},"y":[1]}}', '{{"y":null,"a":{}}}']
)
def test_a_member_is_found_with_its_own_text(value: str, form: str) -> None:
    assert Members(["a", "missing"]).columns([form.format(value)]) == [[value], [None]]


def test_null_and_missing_members_are_none() -> None:
    texts = ['{"a":null}', "{}", None, '{"a": null ,"b":"null"}']
    assert Members(["a", "b"]).columns(texts) == [[None] * 4, [None, None, None, '"null"']]


@pytest.mark.parametrize("name", ["", "a.b", 'a"b', "a\\b", "é😀", "\n", "(a|b)*", "a"])
def test_a_name_may_contain_anything_and_be_written_with_escapes(name: str) -> None:
    for written in (orjson.dumps(name).decode(), json.dumps(name)):
        text = '{"b":1,' + written + ':[2],"c":3}'
        assert Members([name]).columns([text]) == [["[2]"]]


@pytest.mark.parametrize("text", ['{"secret":1', '{"a":[1', '{"secret":}', "{secret}", "{"])
def test_what_is_no_object_is_an_error_without_its_values(text: str) -> None:
    with pytest.raises(DecodeError) as caught:
        Members(["a"]).columns([text])
    assert "secret" not in str(caught.value)
