"""Commands to services: without a token anybody may give them, with one only its recent holder."""

from __future__ import annotations

import msgpack
import pytest

from headrace.bus import signed
from headrace.bus.signed import SKEW_S_MAX

NOW = 1_790_000_000.0
RECORD = {"reason": "upgrade", "at": 3}


def test_without_a_token_a_well_formed_recent_command_is_obeyed() -> None:
    assert signed.is_obeyed(None, "stop", "shop", signed.command(None, "stop", "shop", NOW), NOW)
    with_a_token = signed.command("secret", "stop", "shop", NOW)
    assert signed.is_obeyed(None, "stop", "shop", with_a_token, NOW)


def test_with_a_token_only_its_holder_is_obeyed_for_this_command_and_slot() -> None:
    command = signed.command("secret", "stop", "shop", NOW)
    assert signed.is_obeyed("secret", "stop", "shop", command, NOW)
    assert not signed.is_obeyed("other", "stop", "shop", command, NOW)
    assert not signed.is_obeyed("secret", "pause", "shop", command, NOW)
    assert not signed.is_obeyed("secret", "stop", "bar", command, NOW)
    unsigned = signed.command(None, "stop", "shop", NOW)
    assert not signed.is_obeyed("secret", "stop", "shop", unsigned, NOW)


@pytest.mark.parametrize("token", [None, "secret"])
def test_a_command_holds_for_a_limited_time_and_clocks_may_differ(token: str | None) -> None:
    command = signed.command(token, "stop", "shop", NOW)
    for skew in (-SKEW_S_MAX, 0.0, SKEW_S_MAX):
        assert signed.is_obeyed(token, "stop", "shop", command, NOW + skew)
    for skew in (-SKEW_S_MAX - 1, SKEW_S_MAX + 1):
        assert not signed.is_obeyed(token, "stop", "shop", command, NOW + skew)


@pytest.mark.parametrize(
    "data",
    [b"", b"+OK", b"\xc1", msgpack.packb({}), msgpack.packb([1]), msgpack.packb({"at": "now"})],
)
def test_what_is_not_a_command_is_not_obeyed(data: bytes) -> None:
    assert not signed.is_obeyed(None, "stop", "shop", data, NOW)


def test_a_stored_record_is_accepted_with_its_token_as_long_as_nobody_changes_it() -> None:
    stored = signed.signed("secret", RECORD)
    assert {key: stored[key] for key in RECORD} == RECORD
    assert signed.is_signed("secret", stored)
    assert not signed.is_signed("other", stored)
    assert not signed.is_signed("secret", stored | {"reason": "another"})
    assert not signed.is_signed("secret", RECORD)


def test_without_a_token_a_record_is_stored_as_it_is_and_any_record_is_accepted() -> None:
    assert signed.signed(None, RECORD) == RECORD
    assert signed.is_signed(None, RECORD)
    assert signed.is_signed(None, signed.signed("secret", RECORD))
