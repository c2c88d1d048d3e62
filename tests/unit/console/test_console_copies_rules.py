"""Rules of the pages of copies: statements against grants, restores against options, addresses
without secrets.
"""

from __future__ import annotations

import pytest

from headrace.console.access import Caller, Role
from headrace.console.backups import restore_arguments, window_of
from headrace.console.cells import Redaction
from headrace.console.problem import ProblemError
from headrace.console.sql import check_grants
from headrace.sinks.operating import shown_address

ORDERS = ("public", "orders", "r", "id", "bigint")
PIN = ("public", "users", "r", "pin", "text")
VIEW = ("public", "totals", "v", "sum", "numeric")


def caller(*patterns: str) -> Caller:
    return Caller("ana", Role.VIEWER, "token", sql=patterns)


def test_a_statement_runs_where_the_right_covers_every_grant() -> None:
    check_grants(caller("orders"), Redaction(), [ORDERS])
    check_grants(caller("*"), Redaction(), [ORDERS, PIN, VIEW])


@pytest.mark.parametrize(
    ("patterns", "redacted", "grant"),
    [
        (("orders",), (), PIN),
        (("*",), ("users.pin",), PIN),
        (("*",), ("users.pin",), VIEW),
        (("totals", "orders"), (), VIEW),
    ],
)
def test_a_grant_beyond_the_right_a_redacted_column_or_an_unchecked_view_refuses(
    patterns: tuple[str, ...], redacted: tuple[str, ...], grant: tuple[str, ...]
) -> None:
    with pytest.raises(ProblemError) as refused:
        check_grants(caller(*patterns), Redaction(redacted), [ORDERS, grant])
    assert (refused.value.status, refused.value.code) == (403, "values")


def test_a_value_of_a_restore_is_never_another_option() -> None:
    asked = {"what": "table", "table": "--to=/etc", "moment": "before-drop"}
    assert restore_arguments(asked) == ["--table=--to=/etc", "--before-drop"]
    asked = {"to": "/srv/new", "moment": "time", "value": "2026-03-29T02:30:00+14:00"}
    assert restore_arguments(asked) == ["--to=/srv/new", "--at=2026-03-28T12:30:00Z"]


@pytest.mark.parametrize(
    "asked",
    [
        {"to": "relative"},
        {"what": "table"},
        {"what": "world", "to": "/x"},
        {"to": "/x", "moment": "before-drop"},
        {"to": "/x", "moment": "time", "value": "2026-03-29T02:30:00"},
        {"to": "/x", "moment": "lsn", "value": "--yes"},
        {"to": "/x", "moment": "before-xid", "value": "-1"},
        {"to": "/x", "moment": "yesterday"},
    ],
)
def test_a_restore_that_is_not_exact_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(ProblemError) as refused:
        restore_arguments(asked)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:secret@host:8443/hook?token=secret", "https://host:8443/hook"),
        ("kafka://one:9092,two:9092", "kafka://one:9092,two:9092"),
        ("sqlite:///var/lib/copy.db", "sqlite:///var/lib/copy.db"),
        ("env:TARGET", "env:TARGET"),
    ],
)
def test_a_targets_address_is_shown_without_secrets(address: str, shown: str) -> None:
    assert shown_address(address) == shown


def test_a_window_reaches_from_the_oldest_backup_before_no_hole_to_the_end_of_the_log() -> None:
    def backup(day: int, lsn: str, until: str, *, restorable: bool = True) -> dict[str, object]:
        time = f"2026-01-{day:02}T00:00:00+00:00"
        return {"time": time, "lsn": lsn, "log_until": until, "restorable": restorable}

    hole = {"from": "0/15", "to": "0/18"}
    stored = {"time": "2026-01-09T00:00:00+00:00", "holes": [hole]}
    whole = [backup(2, "0/20", "0/90"), backup(3, "0/30", "0/90")]
    found = window_of(stored, whole)
    assert found is not None
    assert (found["from_lsn"], found["to_lsn"]) == ("0/20", "0/90")
    assert (found["from"][:10], found["to"][:10]) == ("2026-01-02", "2026-01-09")
    # Its log ends in a hole.
    found = window_of(stored, [backup(1, "0/10", "0/15"), *whole])
    assert found is not None
    assert found["from_lsn"] == "0/20"
    # No backup has been taken since the hole.
    assert window_of(stored, [backup(1, "0/10", "0/15")]) is None
    assert window_of(stored, []) is None
    assert window_of(stored, [backup(2, "0/20", "0/90", restorable=False)]) is None
