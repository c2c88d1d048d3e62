"""Adds to the site the files of the repository that a page links to, and `llms.txt`.

`llms.txt` lists all pages with a sentence about each, for programs that read the site. Loaded by
mkdocs (mkdocs.yml names it). A link that leaves docs/ leads to the file itself in a
checkout; in the site it leads to a copy, and a link to a folder becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# In a table's code GitHub wants a bar escaped; here the backslash would be shown.
CELL_CODE = re.compile(r"(?<=\| )`[^`\n]*\\\|[^`\n]*`")
OUTSIDE = re.compile(r"\[([^\]]*)\]\((\.\./[^)#\s]+)\)")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
SENTENCE = re.compile(r"^.*?[.](?=\s|$)", re.DOTALL)
_NO_PROSE = ("", "#", "<", "|", "`", ":", "!", "-")
_pages: list[Page] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a copy of each file outside docs/ that some page links to."""
    for page in files.documentation_pages():
        for _, link in OUTSIDE.findall(page.content_string):
            if (target := _target(page.src_uri, link)) is not None and _copy(
                target
            ) not in files.src_uris:
                files.append(
                    File.generated(config, _copy(target), content=(ROOT / target).read_bytes())
                )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001  # mkdocs calls it so
    """Point links that leave docs/ at the copies."""

    def inside(match: re.Match[str]) -> str:
        text, link = match.groups()
        target = _target(page.file.src_uri, link)
        if target is None:
            return match[0] if _stays(page.file.src_uri, link) else text
        return f"[{text}]({posixpath.relpath(_copy(target), posixpath.dirname(page.file.src_uri) or '.')})"

    return CELL_CODE.sub(lambda code: code[0].replace("\\|", "|"), OUTSIDE.sub(inside, markdown))


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:  # noqa: ARG001  # mkdocs calls it so
    """Keep the pages of the menu, in its order."""
    _pages[:] = nav.pages


def on_post_build(config: MkDocsConfig) -> None:
    """Write `llms.txt`."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    section = None
    for page in _pages:
        top = page.ancestors[-1].title if page.ancestors else "Start"
        if top != section:
            lines += ["", f"## {top}", ""]
            section = top
        about = _first_sentence(page.markdown or "")
        lines.append(f"- [{page.title}]({page.url})" + (f": {about}" if about else ""))
    Path(config.site_dir, "llms.txt").write_text("\n".join([*lines, ""]))


def _first_sentence(markdown: str) -> str:
    """The first sentence of the first paragraph."""
    paragraphs = (part.strip() for part in markdown.split("\n\n"))
    text = next((part for part in paragraphs if part[:1] not in _NO_PROSE), "")
    plain = " ".join(LINK.sub(r"\1", text).replace("**", "").split())
    found = SENTENCE.match(plain)
    return found[0] if found else plain.rstrip(":")


def _target(page: str, link: str) -> str | None:
    """The path from the repository's root of a file that lies outside docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") or not (ROOT / path).is_file() else path


def _stays(page: str, link: str) -> bool:
    return posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link)).startswith(
        "docs/"
    )


def _copy(target: str) -> str:
    # A page's copy would become a page of the site.
    return f"files/{target}.txt" if target.endswith(".md") else f"files/{target}"
