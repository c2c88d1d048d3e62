"""Each alert fires in its drill, stays silent without it, and has its section in the runbooks. By
promtool.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.metrics.catalogue import FIGURES
from tests.chart.prometheus import (
    PrometheusMissingError,
    binary,
)

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/alerts.yaml"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Drill:
    """Series that an alert must fire on, and such that it must not; `30+0x9` is promtool's own
    form.
    """

    firing: dict[str, str]
    quiet: dict[str, str]
    minutes: int = 3


def gauge(series: str, firing: float, quiet: float, minutes: int = 3) -> Drill:
    return Drill({series: f"{firing}+0x200"}, {series: f"{quiet}+0x200"}, minutes)


def counted(metric: str, labels: str = 'source="s"', by: int = 2, minutes: int = 9) -> Drill:
    """A counter that grows each minute, against one that stands."""
    series = f"{metric}{{{labels}}}"
    return Drill({series: f"0+{by}x200"}, {series: "7+0x200"}, minutes)


def one_more(metric: str) -> Drill:
    """A counter that grows once, against one that has stood for longer than the window."""
    series = f'{metric}{{source="s",service="x"}}'
    return Drill({series: "0+0x60 1+0x30"}, {series: "3+0x200"}, 90)


def status(metric: str, label: str, value: str) -> Drill:
    return gauge(f'{metric}{{source="s",{label}="{value}"}}', 1, 0)


MIRROR = 'up{job="headrace-mirror",instance="mirror:9098"}'
CONSUMER = 'source="s",stream="CDC",consumer="billing"'
DRILLS = {
    "HeadraceSlotLost": status("headrace_slot_wal_status", "status", "lost"),
    "HeadraceSlotMissing": status("headrace_slot_wal_status", "status", "missing"),
    "HeadraceSlotUnreserved": status("headrace_slot_wal_status", "status", "unreserved"),
    "HeadraceSlotLossNear": gauge('headrace_slot_loss_seconds{source="s"}', 1800, 86_400),
    "HeadraceSlotInactive": Drill(
        {
            'headrace_slot_active{source="s"}': "0+0x99",
            'headrace_pg_reachable{source="s"}': "1+0x99",
        },
        # An unanswered question to PostgreSQL is no finding.
        {
            'headrace_slot_active{source="s"}': "0+0x99",
            'headrace_pg_reachable{source="s"}': "0+0x99",
        },
    ),
    "HeadraceWalLagWarning": status("headrace_wal_alarm", "level", "warning"),
    "HeadraceWalLagCritical": status("headrace_wal_alarm", "level", "critical"),
    "HeadracePostgresUnreachable": gauge('headrace_pg_reachable{source="s"}', 0, 1),
    "HeadraceTelemetryDown": gauge('up{job="headrace",instance="telemetry:9090"}', 0, 1),
    "HeadraceServiceDown": gauge('headrace_up{source="s",service="publisher"}', 0, 1),
    "HeadraceServiceNotReady": gauge('headrace_ready{source="s",service="publisher"}', 0, 1),
    "HeadraceConsoleRefusals": counted(
        "headrace_console_refusals_total", 'source="s",service="console",code="sign_in"', by=5
    ),
    "HeadraceNatsReconnecting": counted("headrace_nats_reconnects_total"),
    "HeadraceSourceReconnecting": counted("headrace_pg_reconnects_total"),
    "HeadraceErrors": counted(
        "headrace_errors_total", 'source="s",service="x",level="error",kind="k"'
    ),
    "HeadraceMemoryHigh": gauge(
        'headrace_memory_bytes{source="s",service="publisher"}', 300 * MIB, 60 * MIB, 15
    ),
    "HeadraceVersionsDiffer": Drill(
        {
            f'headrace_build_info{{source="s",service="{s}",version="{v}"}}': "1+0x99"
            for s, v in (("a", 1), ("b", 2))
        },
        {
            f'headrace_build_info{{source="s",service="{s}",version="1"}}': "1+0x99"
            for s in ("a", "b")
        },
        40,
    ),
    "HeadraceDeliveryLag": gauge('headrace_lag_seconds{source="s"}', 45, 2),
    "HeadracePaused": gauge('headrace_paused{source="s"}', 1, 0, 20),
    "HeadraceGap": one_more("headrace_gaps_total"),
    "HeadraceParked": one_more("headrace_parked_messages_total"),
    "HeadraceRecoveries": counted("headrace_recoveries_total"),
    "HeadraceConfirmerDropped": one_more("headrace_confirmers_dropped_total"),
    "HeadraceArchiveGap": one_more("headrace_archive_gaps_total"),
    "HeadraceArchiveBaseOld": gauge(
        'headrace_archive_base_age_seconds{source="s"}', 9 * 86_400, 7 * 86_400, 90
    ),
    "HeadraceConsumerBehind": gauge(f"headrace_consumer_left_ratio{{{CONSUMER}}}", 0.4, 0.9, 9),
    "HeadraceConsumerNearLoss": gauge(f"headrace_consumer_left_ratio{{{CONSUMER}}}", 0.05, 0.3),
    "HeadraceConsumerLostEvents": gauge(f"headrace_consumer_lost_messages{{{CONSUMER}}}", 12, 0),
    "HeadraceSnapshotFailed": one_more("headrace_snapshots_failed_total"),
    "HeadraceAuditBehind": gauge('headrace_audit_behind_seconds{source="s"}', 90, 3, 9),
    "HeadraceAuditDestinationAway": Drill(
        {'headrace_not_ready{source="s",service="audit-writer",part="destination"}': "1+0x99"},
        {'headrace_not_ready{source="s",service="audit-writer",part="start"}': "1+0x99"},
    ),
    # Quiet: one restart.
    "HeadraceAuditStopped": Drill(
        {'headrace_up{source="s",service="audit-writer"}': "1+0x9 0 1 0 0 0 1 0 0 0 0 0 1 0 0 0 0"},
        {'headrace_up{source="s",service="audit-writer"}': "1+0x9 0 0 1+0x99"},
        23,
    ),
    "HeadraceAuditGap": one_more("headrace_audit_gaps_total"),
    "HeadraceLakeBehind": gauge('headrace_lake_lag_seconds{source="s"}', 400, 3, 9),
    "HeadraceLakeRecovering": counted("headrace_lake_recoveries_total"),
    "HeadraceLakeTableParked": gauge('headrace_lake_parked_tables{source="s"}', 1, 0),
    "HeadraceLakeDeletedRows": gauge('headrace_lake_deleted_ratio{source="s"}', 0.6, 0.3, 75),
    "HeadraceSqlBehind": Drill(
        {
            'headrace_lake_lsn{source="s",service="lake-writer"}': "100+100x99",
            'headrace_sql_lsn{source="s",service="sql-server"}': "100+0x99",
        },
        # Quiet: two minutes behind, and an idle source.
        {
            'headrace_lake_lsn{source="s",service="lake-writer"}': "1000+100x99",
            'headrace_sql_lsn{source="s",service="sql-server"}': "800+100x99",
        },
        20,
    ),
    "HeadraceSqlSessionFailed": one_more("headrace_sql_session_failures_total"),
    "HeadraceSinkBehind": gauge(
        'headrace_sink_behind_seconds{source="s",service="sink-a"}', 400, 3, 12
    ),
    "HeadraceSinkTargetAway": Drill(
        {'headrace_not_ready{source="s",service="sink-a",part="target"}': "1+0x99"},
        {'headrace_not_ready{source="s",service="mirror",part="target"}': "1+0x99"},
    ),
    "HeadraceSinkRefused": Drill(
        {'headrace_not_ready{source="s",service="sink-a",part="refused"}': "1+0x99"},
        {'headrace_not_ready{source="s",service="sink-a",part="start"}': "1+0x99"},
    ),
    "HeadraceSinkParked": one_more("headrace_sink_parked_total"),
    "HeadraceSinkGap": one_more("headrace_sink_gaps_total"),
    "HeadraceBackupBehind": gauge('headrace_backup_lag_seconds{source="s"}', 90, 3, 9),
    "HeadraceBackupHole": gauge('headrace_backup_holes{source="s"}', 1, 0),
    "HeadraceBackupOld": gauge('headrace_backup_age_seconds{source="s"}', 3 * 86_400, 86_400, 90),
    "HeadraceBackupDrillFailed": gauge('headrace_backup_drill_failed{source="s"}', 1, 0),
    # Quiet: a target that was never there, since nobody runs a mirror.
    "HeadraceMirrorStopped": Drill({MIRROR: "1+0x60 0+0x60"}, {MIRROR: "0+0x120"}, 75),
    "HeadraceMirrorBehind": gauge('headrace_mirror_behind_seconds{source="s"}', 90, 3, 9),
    "HeadraceMirrorTargetAway": Drill(
        {'headrace_not_ready{source="s",service="mirror",part="target"}': "1+0x99"},
        {'headrace_not_ready{source="s",service="mirror",part="start"}': "1+0x99"},
    ),
    "HeadraceMirrorTablesWait": Drill(
        {'headrace_mirror_unfollowed{source="s"}': "3+0x99"},
        {'headrace_mirror_unfollowed{source="s"}': "9+0x30 0+0x99"},
        75,
    ),
    "HeadraceMirrorStands": gauge('headrace_mirror_standing_seconds{source="s"}', 1200, 60),
    "HeadraceMirrorTableParked": gauge('headrace_mirror_parked{source="s"}', 1, 0),
    "HeadraceMirrorMismatch": one_more("headrace_mirror_mismatches_total"),
    "HeadraceMirrorFellBehind": one_more("headrace_mirror_retention_gaps_total"),
    "HeadraceSparkLost": counted("headrace_spark_losses_total", by=1, minutes=30),
}


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def promtool() -> Path:
    try:
        return Path(binary("promtool"))
    except PrometheusMissingError as error:
        pytest.skip(str(error))


def test_every_alert_has_a_drill() -> None:
    assert sorted(DRILLS) == sorted(alerts())


def fires(tmp_path: Path, name: str, series: dict[str, str], minutes: int) -> bool:
    """Whether promtool finds the alert firing on these series."""
    rules = {"groups": [{"name": "drill", "rules": [{**alerts()[name], "annotations": {}}]}]}
    (tmp_path / "rules.yaml").write_text(json.dumps(rules))
    # Sought as «none fires», so that the answer does not hang on every label.
    case = {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "alert_rule_test": [{"eval_time": f"{minutes}m", "alertname": name, "exp_alerts": []}],
    }
    (tmp_path / "case.yaml").write_text(json.dumps({"rule_files": ["rules.yaml"], "tests": [case]}))
    command = [str(promtool()), "test", "rules", str(tmp_path / "case.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in {0, 1}, done.stderr
    assert done.returncode == 0 or f"alertname: {name}" in done.stdout + done.stderr, (
        done.stdout + done.stderr
    )
    return done.returncode == 1


@pytest.mark.parametrize(
    ("service", "mib", "told"),
    [
        ("audit-writer", 300, True),
        ("mirror", 300, True),
        ("archiver", 300, False),
        ("archiver", 600, True),
        ("lake-writer", 600, False),
        ("lake-writer", 1600, True),
        ("sink-orders", 300, False),
        ("sink-orders", 600, True),
        ("wal-archiver", 300, True),
        ("sql-server", 3000, False),
        ("snapshot-responder", 600, False),
    ],
)
def test_memory_is_judged_by_what_a_service_needs(
    tmp_path: Path, service: str, mib: int, told: bool
) -> None:
    series = {f'headrace_memory_bytes{{source="s",service="{service}"}}': f"{mib * MIB}+0x30"}
    assert fires(tmp_path, "HeadraceMemoryHigh", series, 15) is told


@pytest.mark.parametrize("service", ["mirror", "lake-writer", "sql-server", "sink-orders"])
@pytest.mark.parametrize(("part", "told"), [("start", False), ("stream", True), ("nats", True)])
def test_copying_tables_is_no_finding_and_waiting_is(
    tmp_path: Path, service: str, part: str, told: bool
) -> None:
    labels = f'source="s",service="{service}"'
    series = {
        f"headrace_ready{{{labels}}}": "0+0x30",
        f'headrace_not_ready{{{labels},part="{part}"}}': "1+0x30",
    }
    assert fires(tmp_path, "HeadraceServiceNotReady", series, 9) is told


@pytest.mark.parametrize("name", sorted(DRILLS))
def test_each_alert_fires_in_its_drill_and_is_silent_without_it(tmp_path: Path, name: str) -> None:
    drill = DRILLS[name]
    assert fires(tmp_path, name, drill.firing, drill.minutes)
    assert not fires(tmp_path, name, drill.quiet, drill.minutes)


def test_the_rules_are_as_prometheus_wants_them() -> None:
    done = subprocess.run(
        [promtool(), "check", "rules", RULES],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_that_an_alert_names_is_one_of_ours() -> None:
    ours = {figure.metric for figure in FIGURES}
    named = {
        name for rule in alerts().values() for name in re.findall(r"headrace_\w+", rule["expr"])
    }
    assert named - ours == set()


def test_every_alert_has_its_runbook_and_every_runbook_its_alert() -> None:
    page = (ROOT / "docs/runbooks.md").read_text()
    assert sorted(re.findall(r"^## (Headrace\w+)$", page, re.MULTILINE)) == sorted(alerts())
    assert {rule["annotations"]["runbook"] for rule in alerts().values()} == {
        f"docs/runbooks.md#{name.lower()}" for name in alerts()
    }
