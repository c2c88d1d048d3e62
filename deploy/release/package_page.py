"""Hatchling's hook for the page on a package index: the README with links that work there.

An index has none of the repository's files, so relative links need the repository's address:
HEADRACE_REPOSITORY_URL, which the release sets. Without it, a link becomes plain text and a picture
is left out: a page never has a broken one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)


def page(readme: str, repository: str, version: str) -> str:
    """The README for an index."""
    return _LINK.sub(lambda link: _linked(link, repository, version), _COMMENT.sub("", readme))


def _linked(link: re.Match[str], repository: str, version: str) -> str:
    picture, text, path = link.groups()
    if not repository:
        return "" if picture else text
    kind = "raw" if picture else "blob"
    return f"{picture}[{text}]({repository}/{kind}/v{version}/{path})"


def urls(repository: str, version: str) -> dict[str, str]:
    """The links next to the page."""
    if not repository:
        return {}
    return {
        "Homepage": repository,
        "Documentation": f"{repository}/tree/v{version}/docs",
        "Changelog": f"{repository}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Source": repository,
    }


class PackagePage(MetadataHookInterface):
    """Fills in what pyproject.toml declares as dynamic."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        repository = os.environ.get("HEADRACE_REPOSITORY_URL", "").rstrip("/")
        version = str(metadata["version"])
        readme = (Path(self.root) / "README.md").read_text()
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": page(readme, repository, version),
        }
        metadata["urls"] = urls(repository, version)
