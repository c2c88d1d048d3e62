"""Finds the statements in a text, and the query inside COPY, DECLARE, EXPLAIN and PREPARE. Pure.

It knows PostgreSQL's quotes and comments, and no grammar: PostgreSQL itself parses every piece. A
text that it divides wrongly is an error there, and never a statement that runs without its parse
tree. It works on the bytes of encodings in which no byte of a longer character looks like ASCII.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

# In this order: a prefix of a quote is also a word.
_TOKEN: Final = re.compile(
    rb"""
      (?P<space> [ \t\n\r\f\v]+ | --[^\n\r]* )
    | (?P<comment> /\* )
    | (?P<escaped> [eE]' )
    | (?P<text> (?: [bBxXnN] | [uU]& )?' )
    | (?P<name> (?: [uU]& )?" )
    | (?P<dollar> \$ (?: [A-Za-z_\x80-\xff] [A-Za-z0-9_\x80-\xff]* )? \$ )
    | (?P<word> [A-Za-z_\x80-\xff] [A-Za-z0-9_$\x80-\xff]* )
    | (?P<number> [0-9]+ | \$[0-9]+ )
    | (?P<symbol> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_END: Final = re.compile(rb"[^']*(?:''[^']*)*'")
_ESCAPED_END: Final = re.compile(rb"[^'\\]*(?:(?:''|\\.)[^'\\]*)*'", re.DOTALL)
_NAME_END: Final = re.compile(rb'[^"]*(?:""[^"]*)*"')
_COMMENT_STEP: Final = re.compile(rb"/\*|\*/")
# A literal continues in a quote on another line. Possessive: the ways to divide a run of spaces
# are too many to be tried.
_CONTINUED: Final = re.compile(
    rb"(?:[ \t\f\v]|--[^\n\r]*+)*+[\n\r](?:[ \t\n\r\f\v]|--[^\n\r]*+[\n\r])*+'"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a quoted name, a literal, a number or another character, and its place."""

    kind: str
    start: int
    end: int
    # Upper case; empty for what is quoted.
    word: str


def tokens(text: bytes, *, standard_strings: bool = True) -> Iterator[Token]:
    """The tokens without spaces and comments; a quote that never ends takes the rest."""
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None, "the last alternative takes any byte"
        kind = str(found.lastgroup)
        end = _end(text, kind, found, standard_strings=standard_strings)
        # Spaces and comments carry no meaning; a piece's text keeps them, for positions in errors.
        if kind not in ("space", "comment"):
            plain = kind in ("word", "symbol", "number")
            word = text[at:end].decode("utf-8", "replace").upper() if plain else ""
            yield Token(kind, at, end, word)
        at = end


def _end(text: bytes, kind: str, found: re.Match[bytes], *, standard_strings: bool) -> int:
    """The end of the token that begins with a match."""
    at = found.end()
    match kind:
        case "comment":
            return _comment_end(text, at)
        case "dollar":
            opening = found.group()
            # Nothing inside is special, not even another dollar quote.
            _, closing, rest = text[at:].partition(opening)
            return len(text) - len(rest) if closing else len(text)
        case "name":
            return _quote_end(_NAME_END, text, at)
        case "escaped":
            return _literal_end(_ESCAPED_END, text, at)
        case "text":
            # Then a backslash escapes, as in E'': a quote after it does not end the literal.
            bare = found.group() == b"'" and not standard_strings
            return _literal_end(_ESCAPED_END if bare else _PLAIN_END, text, at)
        case _:
            return at


def _quote_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    closed = pattern.match(text, at)
    return len(text) if closed is None else closed.end()


def _literal_end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    end = _quote_end(pattern, text, at)
    # The rules of its first part hold for all of them.
    while (continued := _CONTINUED.match(text, end)) is not None:
        end = _quote_end(pattern, text, continued.end())
    return end


def _comment_end(text: bytes, at: int) -> int:
    depth = 1
    while depth:
        step = _COMMENT_STEP.search(text, at)
        if step is None:
            return len(text)
        # PostgreSQL's comments nest, unlike those of C.
        depth += 1 if step.group() == b"/*" else -1
        at = step.end()
    return at


@dataclass(frozen=True, slots=True)
class Piece:
    """A statement of a text: its bytes, where it starts, and its tokens."""

    text: bytes
    start: int
    tokens: tuple[Token, ...]

    @property
    def keyword(self) -> str:
        """Its first word; empty if it starts with something else."""
        first = self.tokens[0]
        return first.word if first.kind == "word" else ""

    def word(self, place: int) -> str:
        """The word or the character at a place; empty for quotes and beyond the end."""
        return self.tokens[place].word if place < len(self.tokens) else ""

    def between(self, first: int, last: int) -> bytes:
        """The text from a token to another one, which is included."""
        start, end = self.tokens[first].start, self.tokens[last].end
        return self.text[start - self.start : end - self.start]


def split(text: bytes, *, standard_strings: bool = True) -> list[Piece]:
    """The statements of a text; empty ones are left out."""
    pieces: list[Piece] = []
    found: list[Token] = []
    depth = 0
    body = _AtomicBody()
    start = 0
    for token in tokens(text, standard_strings=standard_strings):
        # A semicolon in parentheses belongs to the actions of CREATE RULE.
        if token.word == ";" and depth <= 0 and not body.open:
            if found:
                pieces.append(Piece(text[start : token.start], start, tuple(found)))
            found, start, body = [], token.end, _AtomicBody()
            continue
        if token.word in ("(", ")"):
            depth += 1 if token.word == "(" else -1
        elif token.kind == "word":
            body.take(token.word, depth)
        found.append(token)
    if found:
        pieces.append(Piece(text[start:], start, tuple(found)))
    return pieces


class _AtomicBody:
    """Whether the end of a statement is inside BEGIN ATOMIC … END, as psql decides it."""

    def __init__(self) -> None:
        self._words: list[str] = []
        self._depth = 0

    @property
    def open(self) -> bool:
        return self._depth > 0

    def take(self, word: str, parentheses: int) -> None:
        # Enough for CREATE OR REPLACE FUNCTION.
        if len(self._words) < 4:
            self._words.append(word)
        if not self._creates_routine() or parentheses:
            return
        # CASE ends with END, too; outside the body it is only a word.
        if word == "BEGIN" or (word == "CASE" and self._depth):
            self._depth += 1
        elif word == "END" and self._depth:
            self._depth -= 1

    def _creates_routine(self) -> bool:
        words = [word for word in self._words if word not in ("OR", "REPLACE")]
        return words[:1] == ["CREATE"] and words[1:2] in (["FUNCTION"], ["PROCEDURE"])


# Statements that contain a query, or name one


@dataclass(frozen=True, slots=True)
class CopyOut:
    """COPY … TO: the query that gives its rows, and its options."""

    query: bytes
    # The query's place in the piece's text; -1 if it was written as a table's name.
    start: int
    to_client: bool
    options: bytes


@dataclass(frozen=True, slots=True)
class Declare:
    """DECLARE … CURSOR: its name and query, and what stands before the query."""

    name: bytes
    options: frozenset[str]
    head: bytes
    query: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Explain:
    """EXPLAIN: the explained statement."""

    options: bytes
    analyze: bool
    query: bytes
    start: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """PREPARE: the statement's name, and its query."""

    name: bytes
    query: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """EXECUTE: a prepared statement's name, and its arguments."""

    name: bytes
    arguments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """FETCH or MOVE: the cursor's name, and which rows."""

    move: bool
    direction: tuple[str, ...]
    name: bytes


@dataclass(frozen=True, slots=True)
class CloseCursor:
    """CLOSE: a cursor's name; None for ALL."""

    name: bytes | None


Utility = CopyOut | Declare | Explain | Prepare | Run | Fetch | CloseCursor


def utility_of(piece: Piece) -> Utility | None:
    """The statement if it is one of these; None for all others, and for what has not the
    form of one, which is PostgreSQL's to refuse.
    """
    reader = {
        "COPY": _copy,
        "DECLARE": _declare,
        "EXPLAIN": _explain,
        "PREPARE": _prepare,
        "EXECUTE": _run,
        "FETCH": _fetch,
        "MOVE": _fetch,
        "CLOSE": _close,
    }.get(piece.keyword)
    return None if reader is None else reader(piece)


def _copy(piece: Piece) -> CopyOut | None:
    place = 1
    if piece.word(1) == "(":
        last = _closing(piece.tokens, 1)
        query = piece.between(2, last - 1) if last > 2 else b""
        start = piece.tokens[2].start - piece.start if last > 2 else 0
    else:
        # The form before PostgreSQL 7.3, which it still accepts.
        if piece.word(1) == "BINARY":
            place = 2
        last = _first(piece, place, ("TO", "FROM")) - 1
        if last < place:
            return None
        query, start = _table_query(piece, place, last), -1
    if piece.word(last + 1) != "TO" or not query:
        return None
    to_client = piece.word(last + 2) == "STDOUT"
    options = b""
    if place == 2:
        options = b"BINARY "
    if _more(piece, last + 3):
        options += piece.between(last + 3, len(piece.tokens) - 1)
    return CopyOut(query, start, to_client, options)


def _table_query(piece: Piece, first: int, last: int) -> bytes:
    """The query of a table's rows: its name, and perhaps a list of columns."""
    # Only a list of columns ends with a parenthesis; a table's name never does.
    if piece.word(last) != ")":
        return b"SELECT * FROM " + piece.between(first, last)
    opening = _first(piece, first, ("(",))
    if opening <= first or opening + 1 >= last:
        return b""
    columns = piece.between(opening + 1, last - 1)
    return b"SELECT " + columns + b" FROM " + piece.between(first, opening - 1)


def _declare(piece: Piece) -> Declare | None:
    place = _first(piece, 2, ("FOR",))
    words = frozenset(piece.word(each) for each in range(2, place))
    if "CURSOR" not in words or not _more(piece, place + 1):
        return None
    # SCROLL and NO SCROLL differ in one word, WITH HOLD and WITHOUT HOLD, too.
    query, start = _rest(piece, place + 1)
    return Declare(identifier(piece, 1), words, piece.between(0, place), query, start)


def _explain(piece: Piece) -> Explain | None:
    place = 1
    analyze = False
    options = b""
    # A parenthesis begins options, or the query itself.
    if piece.word(1) == "(" and piece.word(2) not in ("SELECT", "WITH", "VALUES", "TABLE", "("):
        place = _closing(piece.tokens, 1) + 1
        if place <= len(piece.tokens):
            options = piece.between(1, place - 1)
        words = [piece.word(each) for each in range(2, place)]
        analyze = any(word in ("ANALYZE", "ANALYSE") for word in words)
    else:
        while piece.word(place) in ("ANALYZE", "ANALYSE", "VERBOSE"):
            analyze = analyze or piece.word(place) != "VERBOSE"
            place += 1
        if place > 1:
            options = piece.between(1, place - 1)
    if not _more(piece, place):
        return None
    query, start = _rest(piece, place)
    return Explain(options, analyze, query, start)


def _prepare(piece: Piece) -> Prepare | None:
    if piece.word(1) == "TRANSACTION" or not _more(piece, 1):
        return None
    place = 2
    if piece.word(place) == "(":
        place = _closing(piece.tokens, place) + 1
    query = b""
    if _more(piece, place + 1):
        query = _rest(piece, place + 1)[0]
    return Prepare(identifier(piece, 1), query)


def _run(piece: Piece) -> Run | None:
    if not _more(piece, 1):
        return None
    name = identifier(piece, 1)
    if piece.word(2) != "(":
        return Run(name, ())
    arguments = []
    depth = 0
    first = 3
    for place in range(2, len(piece.tokens)):
        word = piece.word(place)
        # Commas inside calls and arrays do not separate arguments.
        depth += (word in ("(", "[")) - (word in (")", "]"))
        if (word == "," and depth == 1) or (word == ")" and depth == 0):
            if place == first:
                return None
            arguments.append(piece.between(first, place - 1))
            first = place + 1
    return Run(name, tuple(arguments))


def _fetch(piece: Piece) -> Fetch | None:
    last = len(piece.tokens) - 1
    if last < 1:
        return None
    words = tuple(piece.word(place) for place in range(1, last))
    if words[-1:] in (("FROM",), ("IN",)):
        # FROM and IN say nothing about the direction.
        words = words[:-1]
    return Fetch(piece.keyword == "MOVE", words, identifier(piece, last))


def _close(piece: Piece) -> CloseCursor | None:
    if not _more(piece, 1):
        return None
    if piece.word(1) == "ALL":
        return CloseCursor(None)
    return CloseCursor(identifier(piece, 1))


def identifier(piece: Piece, place: int) -> bytes:
    """A name as PostgreSQL keeps it: folded, or without its quotes."""
    if not _more(piece, place):
        return b""
    token = piece.tokens[place]
    written = piece.between(place, place)
    if token.kind == "name" and written[:1] == b'"':
        # PostgreSQL cuts names at 63 bytes, quoted or not.
        return written[1:-1].replace(b'""', b'"')[:63]
    # Only ASCII is folded in an encoding of several bytes.
    return written.lower()[:63]


def _closing(found: Sequence[Token], opening: int) -> int:
    """The place of the parenthesis that ends what another one begins; the end if there is none."""
    depth = 0
    for place in range(opening, len(found)):
        if found[place].word == "(":
            depth += 1
        elif found[place].word == ")":
            depth -= 1
            if depth == 0:
                return place
    return len(found)


def _first(piece: Piece, start: int, words: Sequence[str]) -> int:
    """The place of the first of some words; the end if there is none."""
    places = range(start, len(piece.tokens))
    return next((place for place in places if piece.word(place) in words), len(piece.tokens))


def _more(piece: Piece, place: int) -> bool:
    return place < len(piece.tokens)


def _rest(piece: Piece, place: int) -> tuple[bytes, int]:
    """The text from a token on, and where it starts in the piece."""
    start = piece.tokens[place].start - piece.start
    return piece.text[start:], start
