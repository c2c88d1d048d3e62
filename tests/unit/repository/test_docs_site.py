"""The documentation site builds strictly: every page has its place, every link and anchor leads
somewhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.cli.reference_page import page

ROOT = Path(__file__).parents[3]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "<title>" in (tmp_path / "site/index.html").read_text()
    # GitHub wants a bar in a table's code escaped; the site must not show that.
    assert "<code>--arrays literal|list</code>" in (tmp_path / "site/cli.html").read_text()


def test_the_page_of_commands_is_up_to_date() -> None:
    assert (ROOT / "docs/cli.md").read_text() == page(), "run ./taskw docs:cli"
