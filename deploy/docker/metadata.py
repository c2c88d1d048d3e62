"""Writes the distribution's metadata next to its files: the name and version, which the suite looks
up by name.

Writes only METADATA, in the same form as an installer. Run as `python metadata.py
PYPROJECT FOLDER`.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
    folder = Path(sys.argv[2]) / f"{project['name']}-{project['version']}.dist-info"
    folder.mkdir(parents=True)
    lines = (
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        "",
    )
    (folder / "METADATA").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
