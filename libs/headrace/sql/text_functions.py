"""Functions and operators on texts. Pure.

Both count characters as code points, and compare bytes. PostgreSQL's classes of characters under
the collation C are those of ASCII, so `lower` and `upper` are translations of letters here.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase, ascii_uppercase
from types import MappingProxyType
from typing import Final

from headrace.contract import type_oids
from headrace.sql.calls import (
    Call,
    Functions,
    Handler,
    c_template,
    error_sql,
    refuse_texts,
    template,
    unchanged,
)
from headrace.sql.casts import via_text
from headrace.sql.constants import null, text_literal
from headrace.sql.forms import Expression, value
from headrace.sql.patterns import same_expression
from headrace.sql.storage_types import BPCHAR_OID, TEXT_OID

_LOWER = f"translate({{0}}, '{ascii_uppercase}', '{ascii_lowercase}')"
_UPPER = f"translate({{0}}, '{ascii_lowercase}', '{ascii_uppercase}')"
_NEGATIVE_LENGTH = error_sql("22011", "negative substring length not allowed")


def _trimmed(sql: str) -> str:
    return f"rtrim({sql}, ' ')"


def _like(*, negated: bool = False, ignore_case: bool = False) -> Handler:
    """A pattern's escape is the backslash."""

    def handle(call: Call) -> Expression:
        call.require_c()
        refuse_texts(call)
        pattern = call.text_constant(1)
        if _ends_with_escape(pattern):
            raise call.refuse("The pattern ends with a backslash.")
        # LIKE sees the padding of character(n).
        text, literal = call.sql(0), text_literal(pattern)
        if ignore_case:
            text, literal = _LOWER.format(text), _LOWER.format(literal)
        # In DuckDB a pattern has no escape character unless it is named.
        escape = " ESCAPE '\\'" if "\\" in pattern else ""
        operator = "NOT LIKE" if negated else "LIKE"
        return value(f"({text} {operator} {literal}{escape})", call.result_oid)

    return handle


def _ends_with_escape(pattern: str) -> bool:
    backslashes = len(pattern) - len(pattern.rstrip("\\"))
    return backslashes % 2 == 1


def _substring(call: Call) -> Expression:
    """Counts from 1, where DuckDB counts from the end below 0."""
    call.require_c()
    refuse_texts(call)
    # Start and length are 32-bit numbers, and their sum may not be one.
    text, start = call.sql(0), f"CAST({call.sql(1)} AS BIGINT)"
    if len(call.args) == 2:
        # greatest() ignores nulls, and a start that is null gives null.
        place = f"CASE WHEN {call.sql(1)} IS NOT NULL THEN greatest({start}, 1) END"
        if isinstance(call.args[1].constant, int):
            place = str(max(call.integer_constant(1), 1))
        return value(f"substring({text}, {place})", call.result_oid)
    numbers = [arg.constant for arg in call.args[1:]]
    # Nearly always: the cases below would take several times as long as the function.
    if all(isinstance(number, int) for number in numbers) and call.integer_constant(2) >= 0:
        first = max(call.integer_constant(1), 1)
        count = max(call.integer_constant(1) + call.integer_constant(2) - first, 0)
        return value(f"substring({text}, {first}, {count})", call.result_oid)
    length = f"CAST({call.sql(2)} AS BIGINT)"
    end = f"({start} + {length})"
    taken = f"greatest({end} - greatest({start}, 1), 0)"
    # greatest() ignores nulls, and null arguments give null.
    sql = f"substring({text}, greatest({start}, 1), {taken})"
    nulls = " OR ".join(f"{arg.sql} IS NULL" for arg in call.args)
    cases = f"WHEN {nulls} THEN NULL WHEN {length} < 0 THEN {_NEGATIVE_LENGTH}"
    return value(f"(CASE {cases} ELSE {sql} END)", call.result_oid)


def _concat(call: Call) -> Expression:
    call.require_c()
    refuse_texts(call)
    if any(arg.is_null for arg in call.args):
        return null(call.result_oid)
    return value(f"({call.sql(0)} || {call.sql(1)})", call.result_oid)


def _varchar(call: Call) -> Expression:
    """An explicit cast to varchar(n) cuts; an implicit one would fail instead."""
    modifier = call.integer_constant(1)
    if call.args[2].constant is not True:
        raise call.refuse("An implicit cast to varchar(n).")
    refuse_texts(call)
    # A modifier counts the four bytes of a value's header, too.
    return value(f"left({call.sql(0)}, {modifier - 4})", call.result_oid, modifier)


def _bpchar(call: Call) -> Expression:
    modifier = call.integer_constant(1)
    if call.args[2].constant is not True:
        raise call.refuse("An implicit cast to character(n).")
    refuse_texts(call)
    length = modifier - 4
    # rpad() also cuts what is too long, as an explicit cast does.
    return value(f"rpad({call.sql(0)}, {length}, ' ')", call.result_oid, modifier)


def _split_part(call: Call) -> Expression:
    call.require_c()
    refuse_texts(call)
    number = call.integer_constant(2)
    separator = call.text_constant(1)
    if number < 1 or not separator:
        raise call.refuse("The field has to be a positive constant, and the delimiter not empty.")
    return value(f"split_part({call.sql(0)}, {call.sql(1)}, {number})", call.result_oid)


def _repeat(call: Call) -> Expression:
    refuse_texts(call)
    count = call.integer_constant(1)
    if count > 1000:
        raise call.refuse("The number has to be at most 1000.")
    return value(f"repeat({call.sql(0)}, {max(count, 0)})", call.result_oid)


def _padded(function: str) -> Handler:
    def handle(call: Call) -> Expression:
        refuse_texts(call)
        length = call.integer_constant(1)
        fill = call.text_constant(2) if len(call.args) > 2 else " "
        if not fill or length > 10000:
            raise call.refuse("The length has to be at most 10000, and the fill not empty.")
        sql = f"{function}({call.sql(0)}, {max(length, 0)}, {text_literal(fill)})"
        return value(sql, call.result_oid)

    return handle


def _replace(call: Call) -> Expression:
    call.require_c()
    refuse_texts(call)
    return value(f"replace({call.sql(0)}, {call.sql(1)}, {call.sql(2)})", call.result_oid)


def _matches(*, negated: bool = False) -> Handler:
    """A regular expression of which both languages have the same idea."""

    def handle(call: Call) -> Expression:
        call.require_c()
        refuse_texts(call)
        pattern = call.text_constant(1)
        if not same_expression(pattern):
            raise call.refuse("Its regular expression.")
        # In PostgreSQL the dot matches a line end; in DuckDB's RE2, only with the option `s`.
        sql = f"regexp_matches({call.sql(0)}, {text_literal(pattern)}, 's')"
        return value(f"(NOT {sql})" if negated else sql, call.result_oid)

    return handle


def _replaced_characters(call: Call) -> Expression:
    call.require_c()
    refuse_texts(call)
    letters = call.text_constant(1)
    if len(set(letters)) != len(letters):
        raise call.refuse("A character that is replaced twice.")
    return value(f"translate({call.sql(0)}, {call.sql(1)}, {call.sql(2)})", call.result_oid)


def _concatenated(call: Call) -> Expression:
    """concat(): nulls are empty."""
    texts = [f"coalesce({_output(call, arg)}, '')" for arg in call.args]
    return value(f"({' || '.join(texts)})", call.result_oid)


def _concatenated_with(call: Call) -> Expression:
    texts = ", ".join(_output(call, arg) for arg in call.args)
    return value(f"concat_ws({texts})", call.result_oid)


def _output(call: Call, argument: Expression) -> str:
    """The text that the type's output function writes."""
    oid = argument.form.type_oid
    # Output functions write `t` and `f`; only a cast to text writes whole words.
    if oid == type_oids.BOOL:
        return f"(CASE WHEN {argument.sql} THEN 't' WHEN NOT {argument.sql} THEN 'f' END)"
    # The output keeps the blanks at the end, which a cast to text removes.
    if oid == BPCHAR_OID:
        return argument.sql
    name = call.builtins.type_name(oid)
    return via_text(argument, TEXT_OID, name, call.session).sql


def _truth_text(call: Call) -> Expression:
    return value(f"CAST({call.sql(0)} AS VARCHAR)", call.result_oid)


def _likes() -> Iterator[tuple[str, Handler]]:
    for name, negated in (("like", False), ("nlike", True)):
        yield f"text{name}(text,text)", _like(negated=negated)
        yield f"bpchar{name}(bpchar,text)", _like(negated=negated)
        yield f"name{name}(name,text)", _like(negated=negated)
    for name, negated in (("like", False), ("nlike", True)):
        yield f"textic{name}(text,text)", _like(negated=negated, ignore_case=True)
        yield f"bpcharic{name}(bpchar,text)", _like(negated=negated, ignore_case=True)


def _trims() -> Iterator[tuple[str, Handler]]:
    for name, function in (("btrim", "trim"), ("ltrim", "ltrim"), ("rtrim", "rtrim")):
        yield f"{name}(text)", template(f"{function}({{0}}, ' ')")
        yield f"{name}(text,text)", c_template(f"{function}({{0}}, {{1}})")


TEXT_FUNCTIONS: Final[Functions] = MappingProxyType(
    {
        **dict(_likes()),
        **dict(_trims()),
        "textcat(text,text)": _concat,
        "lower(text)": c_template(_LOWER),
        "upper(text)": c_template(_UPPER),
        "length(text)": template("CAST(length({0}) AS INTEGER)"),
        "char_length(text)": template("CAST(length({0}) AS INTEGER)"),
        "character_length(text)": template("CAST(length({0}) AS INTEGER)"),
        "textlen(text)": template("CAST(length({0}) AS INTEGER)"),
        # The padding of character(n) has no length, but it has bytes.
        "length(bpchar)": template(f"CAST(length({_trimmed('{0}')}) AS INTEGER)"),
        "char_length(bpchar)": template(f"CAST(length({_trimmed('{0}')}) AS INTEGER)"),
        "character_length(bpchar)": template(f"CAST(length({_trimmed('{0}')}) AS INTEGER)"),
        # strlen() counts bytes, length() characters.
        "octet_length(text)": template("CAST(strlen({0}) AS INTEGER)"),
        "octet_length(bpchar)": template("CAST(strlen({0}) AS INTEGER)"),
        "substr(text,int4)": _substring,
        "substr(text,int4,int4)": _substring,
        "substring(text,int4)": _substring,
        "substring(text,int4,int4)": _substring,
        "strpos(text,text)": c_template("CAST(strpos({0}, {1}) AS INTEGER)"),
        "position(text,text)": c_template("CAST(strpos({0}, {1}) AS INTEGER)"),
        "starts_with(text,text)": c_template("starts_with({0}, {1})"),
        "replace(text,text,text)": _replace,
        "left(text,int4)": template("left({0}, {1})"),
        # PostgreSQL has no positive number for the least integer, and takes the whole text.
        "right(text,int4)": template(
            "CASE WHEN {1} = -2147483648 THEN {0} ELSE right({0}, {1}) END"
        ),
        "lpad(text,int4)": _padded("lpad"),
        "lpad(text,int4,text)": _padded("lpad"),
        "rpad(text,int4)": _padded("rpad"),
        "rpad(text,int4,text)": _padded("rpad"),
        "repeat(text,int4)": _repeat,
        "split_part(text,text,int4)": _split_part,
        "md5(text)": template("md5({0})"),
        "translate(text,text,text)": _replaced_characters,
        "textregexeq(text,text)": _matches(),
        "textregexne(text,text)": _matches(negated=True),
        "concat(any)": _concatenated,
        "concat_ws(text,any)": _concatenated_with,
        "varchar(varchar,int4,bool)": _varchar,
        "bpchar(bpchar,int4,bool)": _bpchar,
        "text(bpchar)": template(_trimmed("{0}")),
        "text(name)": unchanged,
        "text(bool)": _truth_text,
    }
)
