"""`pip install headrace`, without any extra: every command works, or says in one sentence what to
install.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import typer.main
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from headrace.cli.main import app
from headrace.extras import EXTRAS
from headrace.sinks.targets import SCHEMES
from headrace.suite.services import SERVICES

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SENTENCE = re.compile(r"Install it with `pip install 'headrace\[([a-z,]+)\]'`")
# The extra that a command needs; every other one gets as far as its servers.
NEEDS = {
    "archive": "archive",
    "archiver": "archive",
    "backup": "archive",
    "lake": "lake",
    "lake-writer": "lake",
    "replay": "archive",
    "restore": "archive",
    "sql-server": "sql",
    "standby": "archive",
    "up": "embedded",
    "wal-archiver": "archive",
}
VALUES = {"to": "start", "into": "sqlite:///x.db", "older_than": "7d"}
# Runs commands, each in a fork of a process that has imported nothing optional: nothing can be.
RUNNER = """
import contextlib, io, json, os, sys, tempfile, traceback
import headrace.cli.main, typer.rich_utils
from headrace.cli.entry import main
for command in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            sys.argv[1:] = command
            code = 0
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
            except BaseException:
                traceback.print_exc()
                code = 70
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        print(json.dumps([command, os.waitstatus_to_exitcode(status), said.read()]), flush=True)
"""


def core() -> dict[str, metadata.Distribution]:
    """The distributions that `pip install headrace` brings, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    wanted = [Requirement(text) for text in PROJECT["dependencies"]]
    while wanted:
        requirement = wanted.pop()
        extras = [*requirement.extras, ""]
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in extras
        ):
            continue
        if name in found:
            continue
        found[name] = metadata.distribution(name)
        for text in found[name].requires or []:
            inner = Requirement(text)
            if inner.marker is None or any(
                inner.marker.evaluate({"extra": extra}) for extra in extras
            ):
                inner.marker = None
                wanted.append(inner)
    return found


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this checkout's code and the core's packages only."""
    folder = tmp_path_factory.mktemp("core")
    uv = Path(sys.executable).with_name("uv")
    venv = folder / "venv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, venv], check=True)
    [site] = (venv / "lib").glob("python*/site-packages")
    for distribution in core().values():
        for name in {Path(str(file)).parts[0] for file in distribution.files or []} - {".."}:
            link = site / name
            if not link.exists() and name != "__pycache__":
                link.symlink_to(Path(str(distribution.locate_file(name))))
    (site / "headrace.pth").write_text(f"{ROOT / 'libs'}\n{ROOT / 'services'}\n")
    (site / f"headrace-{PROJECT['version']}.dist-info").mkdir()
    return venv / "bin/python"


def leaves(command: object, path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Every command, with plausible values for what it requires."""
    assert isinstance(command, TyperCommand | TyperGroup)
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            yield from leaves(inner, (*path, name))
        return
    given: list[str] = []
    for parameter in command.params:
        if not parameter.required or not isinstance(parameter, TyperArgument | TyperOption):
            continue
        value = VALUES.get(str(parameter.name), "x")
        given += [value] if isinstance(parameter, TyperArgument) else [parameter.opts[0], value]
    yield [*path, *given]


def ran(python: Path, folder: Path, commands: list[list[str]], **more: str) -> list[list[object]]:
    # Nothing listens on these ports: a command that gets as far as its servers fails there.
    environment = {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "PG_HOST": "127.0.0.1",
        "PG_PORT": "9",
        "PG_DB": "x",
        "NATS_URL": "nats://127.0.0.1:9",
        "HEADRACE_ARCHIVE_URL": f"file://{folder}/archive",
        "HEADRACE_BACKUP_URL": f"file://{folder}/backup",
        "HEADRACE_LAKE_URL": f"file://{folder}/lake",
        "HEADRACE_HTTP_PORT": "9",
        "DEST_DB_HOST": "127.0.0.1",
        "DEST_DB_PORT": "9",
        **more,
    }
    ended = subprocess.run(
        [python, "-c", RUNNER],
        cwd=folder,
        env=environment,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_the_environment_has_the_core_and_nothing_optional(python: Path) -> None:
    program = f"import importlib.util as u; print([n for n in {sorted(EXTRAS)} if u.find_spec(n)])"
    shown = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout == "[]\n"


def test_every_command_says_in_one_sentence_what_it_misses(python: Path, tmp_path: Path) -> None:
    config = tmp_path / "headrace.toml"
    config.write_text('[[sink]]\nname = "x"\nto = "https://127.0.0.1:9/"\ntables = ["*"]\n')
    # These need nothing more, and would wait for their servers forever.
    endless = {name for name in SERVICES if name not in NEEDS} | {"sink", "mirror", "verify"}
    commands = [
        command for command in leaves(typer.main.get_command(app)) if command[0] not in endless
    ]
    assert {"lake", "sql", "backup", "sinks", "dead-letters"} <= {each[0] for each in commands}
    outcomes = ran(python, tmp_path, commands, HEADRACE_CONFIG=str(config))
    assert len(outcomes) == len(commands)
    for command, code, said in outcomes:
        assert isinstance(command, list)
        text = str(said)
        assert "Traceback" not in text, (command, text)
        assert code in (0, 1, 2, 3), (command, code, text)
        extra = NEEDS.get(command[0])
        if extra is not None:
            found = SENTENCE.search(text)
            assert found, (command, text)
            assert code == 1
            assert text.count("\n") == 1, (command, text)
            if command[0] != "up":
                assert found[1] == extra, (command, text)


def test_the_doctor_does_not_fail_for_what_only_other_images_can_read(
    python: Path, tmp_path: Path
) -> None:
    [outcome] = ran(python, tmp_path, [["doctor", "--json"]])
    checks = json.loads(str(outcome[2]))["checks"]
    unread = [check for check in checks if "not installed" in check["found"]]
    assert {check["group"] for check in unread} == {"Archive", "Backups", "Lake"}
    assert {check["state"] for check in unread} == {"warn"}, unread


# The core's own packages suffice for them.
WITHOUT_EXTRAS = (
    "http",
    "https",
    "opensearch",
    "elasticsearch",
    "postgresql",
    "postgres",
    "sqlite",
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_sink_says_in_one_sentence_what_it_misses(
    python: Path, tmp_path: Path, scheme: str
) -> None:
    program = (
        "from headrace.sinks.targets import is_database, sink_class\n"
        "from headrace.mirror.target import target_of\nfrom headrace.errors import HeadraceError\n"
        f"to = '{scheme}:///x'\n"
        "try:\n    target_of(to) if is_database(to) else sink_class(to)\n    print('works')\n"
        "except HeadraceError as error:\n    print(error)\n"
    )
    shown = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True)
    if scheme in WITHOUT_EXTRAS:
        assert shown.stdout == "works\n"
    else:
        found = SENTENCE.search(shown.stdout)
        assert found, shown.stdout
        assert set(found[1].split(",")) <= set(PROJECT["optional-dependencies"])


def test_each_extra_that_a_sentence_names_contains_the_package() -> None:
    # By the module's name, which differs from the distribution's.
    names = {
        module: {canonicalize_name(one) for one in found}
        for module, found in metadata.packages_distributions().items()
    }
    for module, extra in EXTRAS.items():
        listed = {
            canonicalize_name(Requirement(text).name)
            for text in PROJECT["optional-dependencies"][extra]
        }
        assert names[module] & listed, (module, extra)


def test_a_clones_environment_is_never_changed_by_another_python(
    python: Path, tmp_path: Path
) -> None:
    # Only what `./taskw` made is `./taskw`'s to change: here is no clone.
    [outcome] = ran(python, tmp_path, [["archive", "ls"]])
    assert "installing" not in str(outcome[2])
    assert list(tmp_path.iterdir()) == []
