"""`./taskw release`: builds everything that a release consists of into build/release.

The wheel, the source distribution, the chart's package, a bill of materials for each image, the
notes from CHANGELOG.md, and the checksums of all of them. Publishes nothing. The same commit gives
the same files: times in them are the commit's (SOURCE_DATE_EPOCH).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/release"
IMAGES = {
    "headrace": (),
    "headrace-archive": ("archive",),
    "headrace-lake": ("archive", "lake"),
    "headrace-spark": ("archive", "lake", "spark"),
}
UNRELEASED = "Unreleased"


def main() -> int:
    version = str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.environ.setdefault("SOURCE_DATE_EPOCH", _committed())
    python = [sys.executable, "-m", "hatchling", "build", "--directory", str(FOLDER)]
    # The wheel for every platform; sources, and so images, build the accelerator for theirs.
    _run([*python, "--target", "wheel"], BUILD_ACCELERATOR="off")
    _run([*python, "--target", "sdist"])
    _chart()
    for image, extras in IMAGES.items():
        made = _run([sys.executable, "deploy/docker/sbom.py", *extras])
        (FOLDER / f"{image}-{version}.cdx.json").write_text(made)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), version)
    (FOLDER / "NOTES.md").write_text(notes)
    files = sorted(FOLDER.iterdir())
    (FOLDER / "SHA256SUMS").write_text("".join(map(_checksum, files)))
    for path in sorted(FOLDER.iterdir()):
        sys.stdout.write(f"{path.stat().st_size:>11,}  {path}\n")
    return 0


def notes_of(changelog: str, version: str) -> str:
    """The version's section; the unreleased one if it has none yet."""
    sections = re.split(r"^## \[([^\]]+)\].*\n", changelog, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    for name in (version, UNRELEASED):
        if found.get(name, "").strip():
            return found[name].strip() + "\n"
    raise SystemExit(f"CHANGELOG.md has no section [{version}] or [{UNRELEASED}] with content")


def _chart() -> None:
    helm = Path(sys.executable).with_name("helm")
    found = str(helm) if helm.exists() else shutil.which("helm")
    if found is None:
        raise SystemExit("the chart's package needs helm: install it, and put it on the PATH")
    _run([found, "package", "deploy/helm/headrace", "--destination", str(FOLDER)])


def _committed() -> str:
    """The time of the commit that is released."""
    return _run(["git", "log", "-1", "--format=%ct"]).strip()


def _checksum(path: Path) -> str:
    return f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"


def _run(command: list[str], **more: str) -> str:
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | more, check=True, capture_output=True, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
