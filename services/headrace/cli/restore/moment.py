"""The moment that a restore's options name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from headrace.backup.plan import RestoreTarget, TargetKind
from headrace.cli.archive.read import duration_s
from headrace.cli.restore.wanted import RestoreMoment
from headrace.errors import SettingError
from headrace.lsn import parse_lsn


def target(moment: RestoreMoment) -> RestoreTarget:
    """The moment; the end of the log if no option names one. `before_drop` is the caller's."""
    if moment.given > 1:
        raise SettingError(
            "more than one moment is named",
            remedy="Name one of --at, --lsn, --xid, --before-xid and --before-drop.",
        )
    if moment.at is not None:
        return RestoreTarget(TargetKind.TIME, _time_us(moment.at))
    if moment.lsn is not None:
        return RestoreTarget(TargetKind.LSN, parse_lsn(moment.lsn))
    if moment.xid is not None:
        return RestoreTarget(TargetKind.XID, moment.xid)
    if moment.before_xid is not None:
        return RestoreTarget(TargetKind.XID, moment.before_xid, inclusive=False)
    return RestoreTarget(TargetKind.LATEST)


def _time_us(text: str) -> int:
    """A time, or an age such as `30m`."""
    if text[-1:] in "smhd" and text[:-1].isdigit():
        time = datetime.now(UTC) - timedelta(seconds=duration_s(text))
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError as error:
            raise SettingError(
                f"--at {text!r} is not a time",
                remedy="Write 2026-01-31T15:46+01:00, or 30m, 2h, 7d.",
            ) from error
    if time.tzinfo is None:
        # As PostgreSQL's log of a server in UTC: a time without a zone must not depend on where the
        # command runs.
        time = time.replace(tzinfo=UTC)
    whole = time - datetime(1970, 1, 1, tzinfo=UTC)
    return whole // timedelta(microseconds=1)
