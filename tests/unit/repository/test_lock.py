"""requirements.lock and pyproject.toml agree: every requirement is locked, with hashes, and nothing
else is.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.lock_platforms import PURE_SOURCE, from_wheels

ROOT = Path(__file__).parents[3]
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")


def wanted() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    texts = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for group in (
        *project["project"]["optional-dependencies"].values(),
        *project["dependency-groups"].values(),
    ):
        texts += group
    # A group that is included is listed, too.
    return [Requirement(text) for text in texts if isinstance(text, str)]


def blocks() -> list[list[str]]:
    """The lock's entries: the pinned line and the indented ones after it."""
    found: list[list[str]] = []
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if _PINNED.match(line):
            found.append([line])
        elif found:
            found[-1].append(line)
    return found


def locked() -> dict[str, list[Version]]:
    versions: dict[str, list[Version]] = {}
    for block in blocks():
        match = _PINNED.match(block[0])
        assert match
        versions.setdefault(canonicalize_name(match[1]), []).append(Version(match[2]))
    return versions


def test_everything_that_is_asked_for_is_locked_at_a_version_that_will_do() -> None:
    versions = locked()
    for requirement in wanted():
        found = versions.get(canonicalize_name(requirement.name), [])
        assert found, f"{requirement} is not locked: run ./taskw lock"
        assert all(requirement.specifier.contains(version) for version in found), (
            f"{requirement} is locked at {found}"
        )


def test_nothing_is_locked_for_a_wish_that_was_withdrawn() -> None:
    names = {canonicalize_name(requirement.name) for requirement in wanted()}
    direct = [
        block[0] for block in blocks() if any("headrace (pyproject.toml" in line for line in block)
    ]
    stale = [line for line in direct if canonicalize_name(line.split("==")[0]) not in names]
    assert not stale, f"no longer in pyproject.toml: {stale}; run ./taskw lock"


def test_every_locked_file_is_known_by_its_hash() -> None:
    assert blocks()
    assert all(any("--hash=sha256:" in line for line in block) for block in blocks())


def test_an_entry_of_a_single_file_fits_every_platform_or_says_which_one_it_fits() -> None:
    bound = []
    for block in blocks():
        if " ; " in block[0] or sum("--hash=" in line for line in block) > 1:
            continue
        installed = metadata.distribution(block[0].split("==")[0]).read_text("WHEEL") or ""
        if "-any\n" not in installed:
            bound.append(block[0])
    assert bound == [], "no other machine can install these: give them a marker in pyproject.toml"


def test_the_packages_published_as_source_are_locked() -> None:
    # Else `lock:platforms` would leave out a package that no longer needs it.
    assert set(PURE_SOURCE) <= locked().keys()
    assert len(
        re.findall(r"^\S+==", from_wheels((ROOT / "requirements.lock").read_text()), re.MULTILINE)
    ) == len(blocks()) - len(PURE_SOURCE)


def test_taskw_looks_for_every_python_that_is_supported() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    supported = [
        c.rpartition(" ")[2]
        for c in classifiers
        if c.startswith("Programming Language :: Python :: 3.")
    ]
    [tried] = re.findall(
        r"^ +for name in (python3\..*); do$", (ROOT / "taskw").read_text(), re.MULTILINE
    )
    assert tried.split() == [*(f"python{version}" for version in reversed(supported)), "python3"]
