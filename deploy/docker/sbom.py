"""A software bill of materials of an image, CycloneDX 1.5 in JSON, made from the lock.

Promises that it lists what the Dockerfile installs from the lock, file hashes included, and nothing
by guess: Debian's packages are in the image itself (usr/share/doc), not in here. The same lock
gives the same bytes. Run as `python sbom.py [EXTRA...]`; it prints.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
import uuid
from typing import Any

from locked import ROOT, Package, needed


def component(package: Package) -> dict[str, Any]:
    """A package, by the address that all tools know it by."""
    purl = f"pkg:pypi/{package.name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        # Of every file that may be installed; which one was depends on the platform.
        "properties": [{"name": "headrace:sha256", "value": value} for value in package.hashes],
    }


def bill(lock: str, project: str, extras: list[str]) -> dict[str, Any]:
    """The document."""
    about = tomllib.loads(project)["project"]
    packages = needed(lock, project, extras)
    names = {package.name for package in packages}
    refs = {package.name: f"pkg:pypi/{package.name}@{package.version}" for package in packages}
    itself = f"pkg:pypi/{about['name']}@{about['version']}"
    wanted: dict[str, set[str]] = {itself: set()}
    for package in packages:
        for wanting in package.wanted_by:
            if wanting in names:
                wanted.setdefault(refs[wanting], set()).add(refs[package.name])
            elif wanting == about["name"]:
                wanted[itself].add(refs[package.name])
    seed = hashlib.sha256(
        json.dumps([about["version"], sorted(extras), sorted(refs.values())]).encode()
    )
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.UUID(bytes=seed.digest()[:16], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": about["name"],
                "version": about["version"],
                "purl": itself,
                "licenses": [{"license": {"id": about["license"]}}],
            }
        },
        "components": [component(package) for package in packages],
        "dependencies": [
            {"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(wanted.items())
        ],
    }


def main() -> None:
    lock, project = (ROOT / "requirements.lock").read_text(), (ROOT / "pyproject.toml").read_text()
    sys.stdout.write(json.dumps(bill(lock, project, sys.argv[1:]), indent=2) + "\n")


if __name__ == "__main__":
    main()
