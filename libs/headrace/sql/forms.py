"""The form of an expression's values in DuckDB, and the expression's SQL.

PostgreSQL's numeric has a display scale with each value: `1.50` and `1.5` are equal, and print
differently. DuckDB's DECIMAL has one scale for all. So a numeric expression knows the largest scale
that its values have, and if they don't all have this one, a second SQL expression gives the display
scale of each value. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from headrace.contract import type_oids
from headrace.lake.column_types import numeric_bounds
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.storage_types import Meaning, storage

DIGITS_MAX: Final = 38
"""The digits of DuckDB's widest DECIMAL."""


@dataclass(frozen=True, slots=True)
class Form:
    """The type in PostgreSQL and in DuckDB.

    Of a numeric, `whole` and `scale` are the digits before and after the point that a value has at
    most, and `varies` is true if the display scale differs between values.
    """

    type_oid: int
    duckdb: str
    meaning: Meaning = Meaning.VALUE
    whole: int = 0
    scale: int = 0
    varies: bool = False
    modifier: int = -1

    @property
    def width(self) -> int:
        """The digits of a numeric."""
        return max(self.whole + self.scale, 1)

    @property
    def is_decimal(self) -> bool:
        return self.type_oid == type_oids.NUMERIC and self.meaning is Meaning.VALUE


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL that can stand anywhere, with the form of its values.

    `scale` is the SQL of the display scale, if it varies. `constant` is the value of a literal, and
    `is_null` is true for a literal null.
    """

    sql: str
    form: Form
    scale: str | None = None
    constant: str | int | float | bool | None = None
    is_null: bool = False
    # The SQL of PostgreSQL's text of a numeric, if there is a shorter way than by value and scale.
    text: str | None = None
    # Arithmetic that can overflow, which DuckDB's optimizer may take apart.
    may_fail: bool = False

    @property
    def kept(self) -> str:
        """SQL that DuckDB computes as it is: `x + 1 = 5` is not made `x = 4`, which can't fail."""
        return f"least({self.sql})" if self.may_fail else self.sql

    @property
    def scale_sql(self) -> str:
        """The display scale of each value; null where the value is null is not required."""
        return str(self.form.scale) if self.scale is None else self.scale


def decimal_form(whole: int, scale: int, *, varies: bool = False, modifier: int = -1) -> Form:
    """A numeric of at most so many digits; refused if DuckDB has no such DECIMAL."""
    if scale > DIGITS_MAX:
        raise NotProvenEqualError(f"numeric with {scale} digits after the point")
    # More digits before the point than fit end with an error when a value has them.
    kept = max(min(whole, DIGITS_MAX - scale), 0)
    width = max(kept + scale, 1)
    duckdb = f"DECIMAL({width},{scale})"
    return Form(
        type_oids.NUMERIC,
        duckdb,
        whole=kept,
        scale=scale,
        varies=varies,
        modifier=modifier,
    )


def form_of(type_oid: int, modifier: int = -1) -> Form:
    """The form of a column of the lake, or of another value of a type without variants."""
    stored = storage(type_oid, modifier)
    bounds = numeric_bounds(modifier) if type_oid == type_oids.NUMERIC else None
    if bounds is not None:
        precision, scale = bounds
        return decimal_form(precision - scale, scale, modifier=modifier)
    return Form(type_oid, stored.duckdb, stored.meaning, modifier=modifier)


def value(sql: str, type_oid: int, modifier: int = -1) -> Expression:
    """An expression of a type other than numeric, whose SQL has the type of the copy."""
    return Expression(sql, form_of(type_oid, modifier))


def unified(branches: Sequence[Expression]) -> tuple[Form, list[Expression]]:
    """The common form of the results of CASE, COALESCE and the like, and the branches in it.

    The analyzer has given all of them one type. Only numerics still differ, in digits.
    """
    first = next((branch for branch in branches if not branch.is_null), branches[0])
    if first.form.type_oid != type_oids.NUMERIC:
        same_meaning(branches)
        return replace(first.form, modifier=-1), list(branches)
    form = common_decimal([branch.form for branch in branches if not branch.is_null])
    return form, [as_decimal(branch, form) for branch in branches]


def same_meaning(branches: Sequence[Expression]) -> None:
    """Refuse to mix texts of other types with values."""
    found = {branch.form.meaning for branch in branches if not branch.is_null}
    if len(found) > 1:
        raise NotProvenEqualError("numeric without precision")


def common_decimal(forms: Sequence[Form]) -> Form:
    """A form that holds the values of all; the display scale varies if theirs differ."""
    if not forms:
        return decimal_form(1, 0)
    if not all(form.is_decimal for form in forms):
        raise NotProvenEqualError("numeric without precision")
    scales = {form.scale for form in forms}
    varies = len(scales) > 1 or any(form.varies for form in forms)
    return decimal_form(max(form.whole for form in forms), max(scales), varies=varies)


def as_decimal(branch: Expression, form: Form) -> Expression:
    """A numeric in a wider form."""
    if branch.is_null:
        sql = f"CAST(NULL AS {form.duckdb})"
        return replace(branch, sql=sql, form=form, scale="0" if form.varies else None)
    sql = branch.sql
    if branch.form.duckdb != form.duckdb:
        sql = f"CAST({sql} AS {form.duckdb})"
    return Expression(sql, form, branch.scale_sql if form.varies else None)
