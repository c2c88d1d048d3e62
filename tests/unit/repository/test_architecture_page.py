"""docs/architecture.md and the modules that describe the whole say what the code is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from headrace.settings import BusSettings
from headrace.suite.services import SERVICES
from tests.support.source_tree import ROOT, modules, tree

PAGE = (ROOT / "docs/architecture.md").read_text()
MAP = PAGE.split("## Where to find it")[1].split("```")[1]
# Only nats-py itself may know these; a release may rename them, hence the upper bound in
# pyproject.toml.
INTERNALS = re.compile(
    r"\._(?:ps|nc|send_command|flush_queue|flush_pending|server_info|current_server|connect_command|connect_to_server)\b"
)

SUBJECT = re.compile(r"headrace(\.(\w+|\{\w+\})){2,}")


def rooms(folder: str) -> set[str]:
    """The packages and loose modules of a folder, as the map writes them."""
    there = [
        path
        for path in (ROOT / folder).iterdir()
        if path.name[0] not in "_." and path.suffix in {"", ".py"}
    ]
    return {f"{path.name}/" if path.is_dir() else path.name for path in there}


def test_the_map_names_every_package_and_every_loose_module() -> None:
    for folder in ("libs/headrace", "services/headrace"):
        words = set(
            MAP.split(f"{folder}/", 1)[1].split("\nservices/")[0].split("\ntests/")[0].split()
        )
        assert rooms(folder) - words == set(), folder


def test_the_map_names_every_kind_of_test() -> None:
    [line] = re.findall(r"^tests/ +(.*)$", MAP, re.MULTILINE)
    kinds = {
        path.name
        for path in (ROOT / "tests").iterdir()
        if path.is_dir() and any(path.rglob("*.py"))
    }
    assert kinds - set(re.findall(r"\w+", line)) == set()


def test_the_table_has_every_service_with_its_port() -> None:
    ports = dict(re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", PAGE, re.MULTILINE))
    assert ports == {service.name: str(service.port) for service in SERVICES.values()}


def test_the_credit_is_the_settings_default() -> None:
    [mebibytes] = re.findall(
        r"At most (\d+) MiB are in flight \(`HEADRACE_IN_FLIGHT_BYTES_MAX`\)", PAGE
    )
    assert int(mebibytes) * 1024 * 1024 == BusSettings().in_flight_bytes_max


def is_source(name: str) -> bool:
    roots = (ROOT / "libs/headrace", ROOT / "services/headrace")
    return any((root / name).is_file() for root in roots)


def test_every_file_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    assert len(named) > 60
    assert [name for name in sorted(named) if not is_source(name)] == []


def test_each_walk_names_files_in_steps() -> None:
    walks = PAGE.split("## Seven walks")[1].split("\n## ")[0].split("\n### ")[1:]
    assert [walk.splitlines()[0] for walk in walks] == [
        "One change",
        "One snapshot request",
        "One mirror",
        "One restore",
        "One delivery to a sink",
        "One cut",
        "One query over the lake",
    ]
    for walk in walks:
        steps = re.split(r"^\d+\. ", walk, flags=re.MULTILINE)[1:]
        assert len(steps) >= 6
        assert [step for step in steps if not re.search(r"`[\w/]+\.py`", step)] == []


def subject(node: ast.JoinedStr) -> str:
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )


def test_every_internal_subject_is_formed_in_one_module() -> None:
    found = {
        module
        for module in modules("libs", "services")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.JoinedStr) and SUBJECT.fullmatch(subject(node))
    }
    assert found == {Path("libs/headrace/bus/subjects.py")}


def test_three_modules_touch_what_the_client_library_keeps_to_itself() -> None:
    found = {
        module
        for module in modules("libs", "services")
        if INTERNALS.search((ROOT / module).read_text())
    }
    folder = Path("libs/headrace/jetstream")
    assert found == {folder / "bulk.py", folder / "connection.py", folder / "publishing/wire.py"}
