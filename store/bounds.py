"""Which rows of telemetry can matter to a query: from when to when, and of which GPUs.

So a question about one GPU's day reads the files of that day, however many days a store has. The bounds come from the
query's syntax tree. A condition counts for a table only where it certainly holds for every row of it that matters: it
stands in the WHERE, or in the ON of a join, of the SELECT whose FROM names the table, not under an OR, and compares
the table's own column with a constant. Whatever is not understood gives no bound.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from .guard import Tree
from .instants import nanoseconds
from .schema import MINUTES, TELEMETRY
from .views import HISTORY, TELEMETRY_OF_JOB, VIEWS

_SAME_COLUMNS = {TELEMETRY.name, MINUTES.name, HISTORY.name, TELEMETRY_OF_JOB.name}
"""Their `ts` and `gpu` are those of rows of telemetry, one by one."""
_READ_TELEMETRY = _SAME_COLUMNS | {view.name for view in VIEWS if TELEMETRY.name in view.sql}
# Whether an ON holds for the rows of the left and of the right table that matter. An ASOF join is none of these: which
# row it takes depends on the others.
_JOINS = {"INNER": (True, True), "LEFT": (False, True), "RIGHT": (True, False), "OUTER": (False, False)}
_AFTER = {"COMPARE_EQUAL", "COMPARE_GREATERTHAN", "COMPARE_GREATERTHANOREQUALTO"}
_BEFORE = {"COMPARE_EQUAL", "COMPARE_LESSTHAN", "COMPARE_LESSTHANOREQUALTO"}
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d(?::\d\d)?)(?:\.(\d{1,9}))?Z?)?", re.ASCII)
_ROUNDED_NS = 1000  # DuckDB may round a constant to a microsecond


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What holds of every row of telemetry that matters: since <= ts <= until, in ns since 1970, and gpu in gpus.

    None: nothing is known.
    """

    since: int | None = None
    until: int | None = None
    gpus: frozenset[str] | None = None

    def both(self, second: RowBounds) -> RowBounds:
        """What holds where both hold."""
        return RowBounds(
            max((at for at in (self.since, second.since) if at is not None), default=None),
            min((at for at in (self.until, second.until) if at is not None), default=None),
            second.gpus if self.gpus is None else self.gpus if second.gpus is None else self.gpus & second.gpus,
        )

    def either(self, second: RowBounds) -> RowBounds:
        """What holds where one of both holds."""
        return RowBounds(
            None if self.since is None or second.since is None else min(self.since, second.since),
            None if self.until is None or second.until is None else max(self.until, second.until),
            None if self.gpus is None or second.gpus is None else self.gpus | second.gpus,
        )


def bounds(parts: Sequence[Tree]) -> RowBounds:
    """The bounds of telemetry that a query, by the parts of its syntax tree, can need."""
    needed = [part for part in parts if part.get("type") == "BASE_TABLE" and _table(part) in _READ_TELEMETRY]
    if not needed:
        return RowBounds()
    understood = {}
    for part in parts:
        if part.get("type") == "SELECT_NODE" and not part.get("sample"):  # which is drawn before the WHERE
            source = part["from_table"]
            for reference, conditions in _references(source, list(_conjuncts(part.get("where_clause")))):
                understood[id(reference)] = _of_reference(reference, conditions, alone=reference is source)
    return functools.reduce(RowBounds.either, (understood.get(id(part), RowBounds()) for part in needed))


def _table(reference: Tree) -> str:
    return str(reference.get("table_name")).lower()


def _conjuncts(condition: Tree | None) -> Iterator[Tree]:
    """The conditions that hold where a condition holds."""
    if condition and condition["type"] == "CONJUNCTION_AND":
        for child in condition["children"]:
            yield from _conjuncts(child)
    elif condition:
        yield condition


def _references(source: Tree, conditions: Sequence[Tree]) -> Iterator[tuple[Tree, Sequence[Tree]]]:
    """The tables of a FROM clause, and the conditions that their rows meet if they matter.

    Where an outer join fills columns with NULL, a comparison with them does not hold: so a condition on the joined
    rows is one on the table's own.
    """
    if source["type"] == "BASE_TABLE":
        yield source, conditions
    elif source["type"] == "JOIN" and source["ref_type"] in ("REGULAR", "CROSS") and source["join_type"] in _JOINS:
        joined = [*conditions, *_conjuncts(source.get("condition"))]
        for side, held in zip(("left", "right"), _JOINS[source["join_type"]], strict=True):
            yield from _references(source[side], joined if held else conditions)


def _of_reference(reference: Tree, conditions: Sequence[Tree], *, alone: bool) -> RowBounds:
    """What conditions say of one table; `alone`: no other relation can have a column that they name."""
    table = _table(reference)
    if table not in _SAME_COLUMNS or reference.get("column_name_alias") or reference.get("sample"):
        return RowBounds()
    name = str(reference.get("alias") or table).lower()

    def is_column(node: Tree, column: str) -> bool:
        path = [part.lower() for part in node.get("column_names", ())]
        return path == [name, column] or (alone and path == [column])

    total = RowBounds()
    for condition in conditions:
        kind = condition["type"]
        if kind == "COMPARE_BETWEEN" and is_column(condition["input"], "ts"):
            total = total.both(_span(_instant(condition["lower"]), _instant(condition["upper"])))
        elif kind == "COMPARE_IN" and is_column(condition["children"][0], "gpu"):
            total = total.both(_of_gpus(condition["children"][1:]))
        elif kind in _AFTER | _BEFORE:
            compared, constant = condition["left"], condition["right"]
            after, before = kind in _AFTER, kind in _BEFORE
            if "column_names" in constant:
                compared, constant, after, before = constant, compared, before, after
            if is_column(compared, "ts"):
                at = _instant(constant)
                total = total.both(_span(at if after else None, at if before else None))
            elif is_column(compared, "gpu") and after and before:
                total = total.both(_of_gpus([constant]))
    return total


def _span(since: int | None, until: int | None) -> RowBounds:
    return RowBounds(None if since is None else since - _ROUNDED_NS, None if until is None else until + _ROUNDED_NS)


def _of_gpus(constants: Sequence[Tree]) -> RowBounds:
    texts = [_text(constant) for constant in constants]
    return RowBounds(gpus=frozenset(text for text in texts if text is not None)) if None not in texts else RowBounds()


def _text(constant: Tree) -> str | None:
    literal = constant.get("literal") or {}
    return str(literal["text"]) if literal.get("kind") == "STRING" else None


def _instant(constant: Tree) -> int | None:
    """The time that a text in quotes is, also after a cast, in ns since 1970; None for anything else."""
    kind = "TIMESTAMP"
    if constant["type"] == "OPERATOR_CAST":
        kind, constant = _type(constant), constant["child"]
    match = _TIME.fullmatch(_text(constant) or "")
    if match is None or kind not in ("TIMESTAMP", "TIMESTAMP_NS", "DATE") or (kind == "DATE" and match[2]):
        return None
    try:
        return nanoseconds(datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00'}")) + int(f"{match[3] or '':0<9}")
    except ValueError:  # there is no such day: DuckDB will say so
        return None


def _type(cast: Tree) -> str:
    kind = cast.get("type_expr") or {}
    return "" if kind.get("children") else str(kind.get("type_name")).upper()
