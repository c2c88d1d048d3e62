"""A filter that can't be read is refused with a remedy."""

from __future__ import annotations

import pytest

from headrace.console.filters import EventFilter
from headrace.console.problem import ProblemError


@pytest.mark.parametrize("key", ['{"a":' * 100_000, "{", '{"a": 1,}'])
def test_a_key_that_is_no_json_is_refused(key: str) -> None:
    with pytest.raises(ProblemError) as refused:
        EventFilter.of({"key": key})
    assert refused.value.code == "invalid"
