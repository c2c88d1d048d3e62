"""A misspelled setting is reported, and no other variable is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.settings.typos import misspelled, names

ROOT = Path(__file__).parents[3]
FILES = (".py", ".md", ".yaml", ".yml", ".conf", ".sh")
NAME = re.compile(r"\bHEADRACE_[A-Z0-9_]*[A-Z0-9]\b")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("HEADRACE_DELIVRY", "HEADRACE_DELIVERY"),
        ("HEADRACE_HTTPPORT", "HEADRACE_HTTP_PORT"),
        ("POSTGRES_BRIDGE_PASSWRD", "POSTGRES_BRIDGE_PASSWORD"),
        ("PG_HOTS", "PG_HOST"),
        ("PG_USER", "POSTGRES_BRIDGE_USER"),
        ("NATS_ULR", "NATS_URL"),
        ("DEST_DB_SSLMODE", "DEST_DB_SSL_MODE"),
    ],
)
def test_a_misspelled_setting_is_reported_with_the_right_name(written: str, meant: str) -> None:
    assert misspelled({written: "x"}) == [f"Unknown setting {written}. Did you mean {meant}?"]
    assert misspelled({written: "x", meant: "y"}) == []


def test_settings_and_variables_of_this_repository_are_not_reported() -> None:
    found = set(names())
    for folder in ("libs", "services", "tests", "deploy", "docs"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in FILES and file != Path(__file__):
                found |= set(NAME.findall(file.read_text()))
    found |= set(NAME.findall((ROOT / "compose.yaml").read_text()))
    # The page of settings has it as its example.
    found.discard("HEADRACE_DELIVRY")
    assert len(found) > 150
    assert misspelled(dict.fromkeys(found, "x")) == []


def test_variables_of_other_programs_are_not_reported() -> None:
    of_a_cluster = {
        "HEADRACE_PORT": "tcp://10.0.0.1:9090",
        "HEADRACE_PORT_9090_TCP_ADDR": "10.0.0.1",
        "HEADRACE_SERVICE_HOST": "10.0.0.1",
        "HEADRACE_SERVICE_PORT": "9090",
        "HEADRACE_TELEMETRY_SERVICE_PORT_HTTP": "9090",
        "NATS_PORT": "tcp://10.0.0.2:4222",
        "NATS_PORT_4222_TCP_PORT": "4222",
        "NATS_SERVICE_HOST": "10.0.0.2",
        "NATS_SERVICE_PORT": "4222",
    }
    of_images = {
        "PG_MAJOR": "18",
        "PG_VERSION": "18.4",
        "POSTGRES_PASSWORD": "x",
        "POSTGRES_USER": "x",
        "PGUSER": "x",
    }
    assert misspelled(of_a_cluster | of_images) == []
