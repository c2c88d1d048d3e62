"""`./taskw prose`: words and constructions that a native technical writer of this field avoids.

Reads only prose: pages without their code, comments, docstrings, and strings of several words. Each
area has a budget for each rule (`tests/prose_budget.json`), which may only fall: `./taskw prose --
--lower` writes down what is left. A rule without a number has a budget of zero.
`tests/unit/repository/test_prose.py` fails where an area is over its budget.

    ./taskw prose                       every finding
    ./taskw prose -- code               those of an area: pages, decisions, code or tests
    ./taskw prose -- libs/headrace/bus  those of a file or folder
"""

from __future__ import annotations

import ast
import bisect
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUDGET = ROOT / "tests/prose_budget.json"
# Written by a program from texts that are checked where they are written.
GENERATED = {"docs/cli.md", "docs/settings.md", "docs/metrics.md", "deploy/helm/headrace/README.md"}
AREAS = {
    "pages": (
        "*.md",
        "docs/*.md",
        "deploy/**/*",
        "examples/**/*",
        "Taskfile.yml",
        "taskw",
        "mkdocs.yml",
        "compose.yaml",
        "tests/tools",
        ".ci/run",
    ),
    "decisions": ("docs/adr/*.md",),
    "code": ("libs/**/*.py", "services/**/*.py", "docs/*.py"),
    "tests": ("tests/**/*.py",),
}
# Sentences that are quoted, by a part of them: as examples of what not to write (all of a file is "").
QUOTES: dict[str, tuple[str, ...]] = {
    # The code of a function in SQL.
    "libs/headrace/postgres/ddl_trigger.py": ("jsonb",),
    "tests/prose.py": ("",),
    # Names in the benchmarks' history.
    "tests/bench/suites.py": ("two suites at once",),
    "tests/unit/repository/test_prose.py": ("",),
}

_OBJECT = (
    r"(?:slot|stream|table|publication|bucket|file|folder|event|partition|column|database|role|user"
    r"|consumer|certificate|connection|index|schema)(?:e?s)?"
)


@dataclass(frozen=True)
class Rule:
    """A construction, by a pattern over one sentence, and what to write for it."""

    name: str
    pattern: re.Pattern[str]
    instead: str


def _rule(name: str, pattern: str, instead: str, *, case: bool = False) -> Rule:
    return Rule(name, re.compile(pattern, 0 if case else re.IGNORECASE), instead)


RULES = (
    _rule("told", r"\btold(?! apart)\b", "reported, or given"),
    _rule("told apart", r"\b(?:told|tells?|telling) (?:\w+ )?apart\b", "distinguished"),
    _rule("anew", r"\banew\b", "again"),
    _rule("by itself", r"\bby (?:itself|themselves)\b", "automatically, or on its own"),
    _rule(
        "present",
        r"\bpresent (?:schema|state|end|rate|moment|time|shape|position|row|value|key)s?\b",
        "current",
    ),
    _rule("begun", r"\bbegun\b", "started"),
    _rule(
        "make",
        rf"\b(?:make|makes|made|making)\s+(?:(?:the|a|an|its|their|one|two|of|no|each)\s+)?{_OBJECT}\b",
        "create",
    ),
    _rule(
        "is made", r"\b(?:is|are|was|were|been|being) made(?! of| up| to| by| from)\b", "created"
    ),
    _rule(
        "free relative",
        r"^(?:(?:Who|Whom|Whose|What|Whatever|Whoever)(?! to\b)|Where (?!to\b)\w+ \w+"
        r"|How (?!to\b|far\b|long\b|often\b|many\b|much\b|soon\b|fast\b)\w+) (?!.*\?$)(?:\S+ ){4,}\S+\.$",
        "name the subject: 'Clients that …', 'The fields …'",
        case=True,
    ),
    _rule(
        "who",
        r"\b(?:for|of|to|by|from|with|and|as|than|until|where) who(?:m|ever)?\b(?!.*\?$)",
        "clients that …, anyone who …",
    ),
    _rule("whoever", r"\bwhoever\b", "anyone who"),
    _rule("whatever", r"\bwhatever\b", "even if, no matter, any"),
    _rule("of its own", r"\bof (?:its|their|one's|his) own\b", "its own …, a separate …"),
    _rule("alone", r"\balone\b", "only"),
    _rule("in its place", r"\bin (?:its|their) places?\b", "in order"),
    _rule("other way round", r"\bthe other way round\b", "the reverse"),
    _rule("go on", r"\b(?:go|goes|going|went|gone) on\b", "continue"),
    _rule("says so", r"\b(?:say|says|said|saying) so\b", "reports it"),
    _rule("for good", r"\bfor good\b", "permanently"),
    _rule("as ever", r"\bas ever\b", "as before"),
    _rule("for ever", r"\bfor ever\b", "forever"),
    _rule("so often", r"\bso often\b|\boftener\b", "this many times, more often"),
    _rule("none is", r"\bnone (?:is|has|comes|does)\b", "there is no …"),
    _rule("no more", r"\bno more(?=[.,;:]|$)", "no longer"),
    _rule("such a one", r"\bsuch (?:a )?one\b", "one of these"),
    _rule("in silence", r"\bin silence\b", "silently"),
    _rule("pass over", r"\bpass(?:es|ed|ing)? over\b|\bpassed it over\b", "skip"),
    _rule("in step", r"\bin step\b", "in sync"),
    _rule("beside", r"\bbeside\b", "next to, alongside, compared with"),
    _rule("mend", r"\bmend(?:s|ed|ing)?\b", "fix, repair"),
    _rule("heal", r"\bheal(?:s|ed|ing)?\b", "recover, repair"),
    _rule("obey", r"\bobey(?:s|ed|ing)?\b|\bobedien\w+", "follow, honor, accept"),
    _rule("make good", r"\b(?:makes?|made|making) (?:it )?good\b", "recover from"),
    _rule("is there", r"\b(?:is|are|was|were) there(?=[.,;:]|$)", "exists, is available"),
    _rule("some 10", r"\bsome \d", "about"),
    _rule("lies in", r"\b(?:lie|lies|lay) (?:in|on|behind|before)\b", "is (stored) in"),
    _rule("asked of", r"\b(?:asks?|asked) of\b", "requested from, demanded of"),
    _rule("bears out", r"\b(?:bears?|bore|borne) (?:\w+ )?out\b", "confirms"),
    _rule("the word", r"\bthe word (?:is|that|of)\b", "the record, the flag"),
    _rule("at once", r"\bat once\b", "immediately, or at the same time"),
    _rule("remedy said", r"\bsays? (?:the|its) remed(?:y|ies)\b", "suggests a fix"),
    _rule("is taken for", r"\bis taken (?:for|to)\b", "is treated as"),
    _rule("from there on", r"\bfrom there on\b", "from then on"),
    _rule("two colons", r":\s(?:.*?\S):\s", "two sentences"),
    _rule("three semicolons", r";\s.*;\s.*;\s.*\.$", "several sentences"),
)
# Two colons in a sentence are a matter of pages; a comment often has a label.
_FOR_PAGES = {"two colons", "three semicolons"}


@dataclass(frozen=True)
class Finding:
    file: str
    line: int
    rule: Rule
    words: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule.name}: “{self.words}” → {self.rule.instead}"


@dataclass
class Block:
    """Prose that belongs together, and on which line each part of it stands."""

    text: str = ""
    starts: list[int] | None = None
    lines: list[int] | None = None

    def add(self, text: str, line: int) -> None:
        self.starts = self.starts or []
        self.lines = self.lines or []
        self.text += " " if self.text else ""
        self.starts.append(len(self.text))
        self.lines.append(line)
        self.text += text

    def line(self, offset: int) -> int:
        assert self.starts is not None
        assert self.lines is not None
        return self.lines[bisect.bisect_right(self.starts, offset) - 1]


SENTENCE_END = re.compile(r"(?<=[.!?])[*_)\"]*\s+(?=[A-Z·`*(\"“\[])")
CODE_SPAN = re.compile(r"(`+).+?\1")
LINK = re.compile(r"\]\([^)\s]*\)")
TAG = re.compile(r"<!--.*?-->|<[^>\s][^>]*>")


# Good English that a rule would find.
IDIOM = re.compile(
    r"\b(?:leaves?|left|leaving|let) (?:\S+ ){0,3}alone\b|\b(?:what|is) (?:is|was)? ?going on\b",
    re.IGNORECASE,
)


def prose(text: str) -> str:
    """The text with code, addresses and marks blanked out, each as long as it was."""

    def blank(match: re.Match[str]) -> str:
        return "·" * len(match[0])

    text = IDIOM.sub(blank, CODE_SPAN.sub(blank, text))
    text = LINK.sub(lambda match: "]" + " " * (len(match[0]) - 1), text)
    return TAG.sub(lambda match: " " * len(match[0]), text)


def sentences(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for end in SENTENCE_END.finditer(text):
        yield start, text[start : end.start()]
        start = end.end()
    yield start, text[start:]


def blocks_of_page(text: str) -> Iterator[Block]:
    """Paragraphs, items of lists and cells of tables; headings may begin with What and How."""
    block = Block()
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("```"):
            fenced = not fenced
        if fenced or not bare or bare.startswith(("```", "#", "|", "<!--")):
            yield block
            block = Block()
        if fenced or bare.startswith(("```", "<!--")):
            continue
        if bare.startswith(("|", "#")):
            for cell in re.split(r"(?<!\\)\|", bare):
                yield _block(cell.strip(" #"), number)
            continue
        if re.match(r"[-*+] |\d+\. |> ", bare):
            yield block
            block = Block()
            bare = re.sub(r"^(?:[-*+]|\d+\.|>) +", "", bare)
        if bare:
            block.add(bare, number)
    yield block


def _block(text: str, line: int) -> Block:
    block = Block()
    block.add(text, line)
    return block


def blocks_of_text(text: str) -> Iterator[Block]:
    """Lines, with comments joined: in YAML and scripts what is code finds itself free of prose."""
    block = Block()
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"\s*(?:#|//|--|\*|\{\{/\*)+ ?(.*)", line)
        if comment:
            block.add(comment[1].strip(), number)
            continue
        yield block
        block = Block()
        yield _block(line.strip(), number)
    yield block


def blocks_of_python(text: str) -> Iterator[Block]:
    """Docstrings and strings of several words, and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for paragraph, offset in _paragraphs(node.value):
                if " " in paragraph.text.strip():
                    paragraph.lines = [node.lineno + offset + n for n in paragraph.lines or []]
                    yield paragraph
    block = Block()
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1:
            yield block
            block = Block()
        last = token.start[0]
        block.add(token.string.lstrip("# "), last)
    yield block


def _paragraphs(text: str) -> Iterator[tuple[Block, int]]:
    block = Block()
    for number, line in enumerate(text.splitlines()):
        item = re.match(r"\s*(?:[-*]|\d+\.) ", line)
        if not line.strip() or item:
            yield block, 0
            block = Block()
        if line.strip():
            block.add(line.strip(), number)
    yield block, 0


def findings(file: Path) -> Iterator[Finding]:
    """The findings in a file, with one finding for each occurrence."""
    name = str(file.relative_to(ROOT))
    text = file.read_text()
    if file.suffix == ".md":
        yield from found_in(name, blocks_of_page(text), is_page=True)
    elif file.suffix == ".py":
        yield from found_in(name, blocks_of_python(text), is_page=False)
    else:
        yield from found_in(name, blocks_of_text(text), is_page=False)


def found_in(name: str, blocks: Iterator[Block], *, is_page: bool) -> Iterator[Finding]:
    for block in blocks:
        if any(quote in block.text for quote in QUOTES.get(name, ())):
            continue
        for start, sentence in sentences(prose(block.text)):
            for rule in RULES:
                if rule.name in _FOR_PAGES and not is_page:
                    continue
                for match in rule.pattern.finditer(sentence):
                    words = " ".join(match[0].split()[:8])
                    yield Finding(name, block.line(start + match.start()), rule, words)


def files(*patterns: str) -> list[Path]:
    """The files of the repository that the patterns name, without what programs wrote."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    kept = (".json", ".svg", ".lock")
    return sorted(
        path
        for path in found
        if str(path.relative_to(ROOT)) not in GENERATED
        and path.suffix not in kept
        and not {"node_modules", "__pycache__", "files"} & {*path.parts}
    )


def in_area(area: str) -> list[Finding]:
    return [finding for file in files(*AREAS[area]) for finding in findings(file)]


def budget() -> dict[str, dict[str, int]]:
    """How many findings of each rule an area may still have."""
    content: dict[str, dict[str, int]] = json.loads(BUDGET.read_text())
    return content


def over(area: str) -> list[Finding]:
    """The findings of each rule that has more of them than the area's budget allows."""
    found = in_area(area)
    counts = Counter(finding.rule.name for finding in found)
    allowed = budget()[area]
    return [
        finding
        for finding in found
        if counts[finding.rule.name] > allowed.get(finding.rule.name, 0)
    ]


def lower() -> None:
    """Write down what is left, where it is less than what was allowed."""
    allowed = budget()
    for area, before in allowed.items():
        counts = Counter(finding.rule.name for finding in in_area(area))
        left = {name: min(counts[name], number) for name, number in sorted(before.items())}
        allowed[area] = {name: number for name, number in left.items() if number}
    BUDGET.write_text(json.dumps(allowed, indent=2) + "\n")


def chosen(place: str) -> list[Finding]:
    if place in AREAS:
        return in_area(place)
    paths = [ROOT / place] if (ROOT / place).is_file() else files(f"{place}/**/*")
    return [finding for path in paths for finding in findings(path)]


def main(arguments: list[str]) -> int:
    if arguments == ["--lower"]:
        lower()
        return 0
    for place in arguments or AREAS:
        for finding in chosen(place):
            print(finding)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
