"""The distribution's metadata beside its files: its name and version, which the suite asks for by
name.

Promises what an installer writes, of it only what is asked: METADATA. Run as `python metadata.py
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
