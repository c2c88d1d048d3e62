"""The rules of the architecture and of the style, as tests: who may import whom, what every module
owes its reader.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import (
    ROOT,
    ROOTS,
    failures,
    imports,
    inside,
    modules,
    tree,
)

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
TEST_LINES_MAX = 630

# They start services, and know their names; no service knows them.
STARTERS = frozenset({"cli", "supervisor"})
# A pure module may not even see these: sockets, event loops, clients, files of the machine,
# clocks, chance.
IO_MODULES = frozenset(
    {
        "aiohttp",
        "asyncio",
        "asyncpg",
        "http",
        "nats",
        "psycopg",
        "pyspark",
        "select",
        "selectors",
        "signal",
        "socket",
    }
    | {
        "os",
        "random",
        "secrets",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uvloop",
    }
)
# In addition to those whose docstring says "Pure.".
PURE = (
    "libs/headrace/pgoutput",
    "libs/headrace/contract",
    "libs/headrace/bus/frame.py",
    "libs/headrace/bus/control.py",
    "libs/headrace/bus/confirmed_lsn.py",
    "libs/headrace/bus/sender.py",
    "libs/headrace/bus/receiver.py",
    "libs/headrace/audit/query.py",
    "libs/headrace/errors.py",
    "libs/headrace/lsn.py",
    "services/headrace/archiver/builder.py",
    "services/headrace/publisher/assembler.py",
)


def services() -> set[str]:
    return {
        path.name for path in (ROOT / "services/headrace").iterdir() if any(path.glob("*.py"))
    } - STARTERS


def module_file(name: str) -> Path | None:
    """The file of a module of ours, if the name is one's."""
    for root in ("libs", "services"):
        path = ROOT / root / name.replace(".", "/")
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            if candidate.is_file():
                return Path(candidate).relative_to(ROOT)
    return None


def test_all_services_are_there() -> None:
    five = {"wal_reader", "publisher", "snapshot_responder", "schema_publisher", "telemetry"}
    optional = {"archiver", "audit_writer", "console", "lake_writer", "sink", "sql_server"}
    optional.add("wal_archiver")
    assert services() == five | optional


def test_an_oracle_imports_nothing_that_it_judges() -> None:
    judges = [
        *modules("tests/oracle"),
        Path("tests/options/judge.py"),
        Path("tests/options/script.py"),
    ]
    assert len(judges) > 2
    failures(
        [
            f"{module} imports {name}"
            for module in judges
            for name in imports(module)
            if inside(name, "headrace")
        ]
    )


def test_a_lib_imports_no_service() -> None:
    forbidden = services() | STARTERS
    failures(
        [
            f"{module} imports {name}"
            for module in modules("libs")
            for name in imports(module)
            if any(inside(name, f"headrace.{service}") for service in forbidden)
        ]
    )


def test_a_service_imports_libs_and_never_another_service() -> None:
    found = []
    for service in services():
        others = (services() | STARTERS) - {service}
        for module in modules(f"services/headrace/{service}"):
            found += [
                f"{module} imports {name}"
                for name in imports(module)
                if any(inside(name, f"headrace.{other}") for other in others)
            ]
    failures(found)


def test_only_confirmers_import_what_confirms() -> None:
    """A library that reads the stream or the archive has no part in confirming the log."""
    confirmers = {"libs/headrace/confirming", "services/headrace/publisher"}
    confirmers.add("services/headrace/archiver")
    failures(
        [
            f"{module} imports {name}"
            for module in modules("libs", "services")
            for name in imports(module)
            if inside(name, "headrace.confirming")
            and not any(Path(folder) in module.parents for folder in confirmers)
        ]
    )


def test_what_starts_services_imports_none() -> None:
    failures(
        [
            f"{module} imports {name}"
            for module in modules(*(f"services/headrace/{starter}" for starter in sorted(STARTERS)))
            for name in imports(module)
            if any(inside(name, f"headrace.{service}") for service in services())
        ]
    )


def says_pure(module: Path) -> bool:
    return re.search(r"\bPure\.", ast.get_docstring(tree(module)) or "") is not None


def followed(module: Path) -> set[Path]:
    """The modules of ours that it takes names from; a module that is taken out of its package
    stands for itself.
    """
    found: set[Path | None] = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            found |= {module_file(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            owner = str(node.module)
            found |= {
                module_file(f"{owner}.{alias.name}") or module_file(owner) for alias in node.names
            }
    return {path for path in found if path is not None}


def test_a_pure_module_sees_no_input_and_no_output_even_through_others() -> None:
    """Followed through our own modules, so that purity isn't lost behind one."""
    found = []
    said = [module for module in modules("libs", "services") if says_pure(module)]
    assert len(said) > 40
    for start in {*said, *modules(*PURE)}:
        queue, seen = [(start, str(start))], {start}
        while queue:
            module, way = queue.pop()
            found += [
                f"{way} imports {name}"
                for name in imports(module)
                if name.split(".")[0] in IO_MODULES
            ]
            for ours in followed(module) - seen:
                seen.add(ours)
                queue.append((ours, f"{way} -> {ours}"))
    failures(sorted(set(found)))


def test_the_archive_is_read_without_a_database_nats_or_spark() -> None:
    """Programs that only read files should not have to install the packages that write them. Followed through our
    own modules.
    """
    found = []
    for start in modules("libs/headrace/archive"):
        queue, seen = [(start, str(start))], {start}
        while queue:
            module, way = queue.pop()
            for name in imports(module):
                if name.split(".")[0] in {"asyncpg", "psycopg", "nats", "pyspark", "aiohttp"}:
                    found.append(f"{way} imports {name}")
                ours = module_file(name)
                if ours is not None and ours not in seen:
                    seen.add(ours)
                    queue.append((ours, f"{way} -> {ours}"))
    failures(found)


def test_every_task_has_a_name() -> None:
    """Only then can a late shutdown, or a dump of a hung process, say what is still running."""
    calls = [
        (module, node)
        for module in modules("libs", "services")
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "create_task"
    ]
    nameless = [
        call for call in calls if "name" not in {keyword.arg for keyword in call[1].keywords}
    ]
    failures([f"{module}:{node.lineno} creates a task without a name" for module, node in nameless])


def test_no_function_is_longer_than_a_screen() -> None:
    found = []
    for module in modules(*ROOTS):
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    found.append(f"{module}:{node.lineno} {node.name} has {lines} lines")
    failures(found)


def test_no_module_has_outgrown_its_noun() -> None:
    counts = {module: len((ROOT / module).read_text().splitlines()) for module in modules(*ROOTS)}
    failures(
        [
            f"{module} has {lines} lines"
            for module, lines in counts.items()
            if lines > (TEST_LINES_MAX if module.is_relative_to("tests") else FILE_LINES_MAX)
        ]
    )


def test_every_module_says_what_it_is() -> None:
    found = [module for module in modules(*ROOTS) if not ast.get_docstring(tree(module))]
    failures(
        [f"{module} has no docstring" for module in found if (ROOT / module).read_text().strip()]
    )


@pytest.mark.parametrize("root", ["libs", "services"])
def test_the_namespace_has_no_init_of_its_own(root: str) -> None:
    assert not (ROOT / root / "headrace/__init__.py").exists()
    bare = {module.parent for module in modules(root)} - {Path(root, "headrace")}
    failures(
        [
            f"{folder} has no __init__.py"
            for folder in sorted(bare)
            if not (ROOT / folder / "__init__.py").exists()
        ]
    )


def committed() -> list[Path]:
    """The files that git has, or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607  # git is where the PATH says
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [Path(name) for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_committed_file_names_a_registry_or_a_place_on_one_machine() -> None:
    """A lock with a mirror's address installs on one network only; a path of one machine means
    nothing on another.
    """
    # Put together here, so that this file passes its own test.
    homes = [f"/{name}/" for name in ("root", "work", "home/[a-z]+", "Users/[A-Za-z]+")]
    registry = "|".join(
        (
            "files\\." + "pythonhosted",
            "pypi\\." + "org/simple",
            "--(extra-)?index-url",
            "--find-links",
        )
    )
    pattern = re.compile("(?<![\\w.$}*/-])(" + "|".join(homes) + ")|" + registry)
    found = []
    for path in committed():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:
            continue
        lines = text.splitlines()
        found += [
            f"{path}:{number} {line.strip()[:120]}"
            for number, line in enumerate(lines, 1)
            if pattern.search(line)
        ]
    failures(
        [
            line
            for line in found
            if not line.startswith("tests/unit/repository/test_architecture.py:")
        ]
    )


def test_every_task_of_the_taskfile_is_explained() -> None:
    listed = subprocess.run(
        [
            Path(sys.executable).with_name("task"),
            "--taskfile",
            ROOT / "Taskfile.yml",
            "--list-all",
            "--json",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    names = re.findall(
        r'"name":\s*"([^"]+)",\s*(?:"task":\s*"[^"]*",\s*)?"desc":\s*"([^"]*)"', listed.stdout
    )
    assert {"up", "test", "check", "format", "lint", "types", "lock"} <= {name for name, _ in names}
    failures([f"{name} has no desc" for name, desc in names if not desc])
