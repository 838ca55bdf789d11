"""What a query asks of the tables: which columns, and of telemetry which GPUs.

A table has up to 60 columns and a large store hundreds of files. DuckDB prepares every column of a view for every
query, and opens every file to find out whether it holds a GPU. So a query that is asked again reads, in place of each
table, a view with the columns that it names, over the files that can hold its GPUs.

The columns are exact: a name means the same column as before, because such a view has every column of its table whose
name stands anywhere in the query. What takes columns without naming them (`*`, NATURAL, a whole row, PIVOT and the
like) is left alone, and so is whatever this module does not know.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..schema import TABLES, TELEMETRY
from .guard import Tree, nodes

_CONSTANT = re.compile(rb"('[^']*')")
# Where one of these stands, what is a constant takes a parser to say: comments, other quotes, escapes.
_ODD = re.compile(rb"--|/\*|[$\"\\\0]")
_PREFIX = re.compile(rb"[\w&]\Z|\A\Z")  # before a constant: what changes its meaning, or a constant that goes on
_EXPRESSIONS = set(
    """BETWEEN CASE CAST COLLATE COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR
    SUBQUERY TYPE WINDOW""".split()  # noqa: SIM905
)
_PARTS = set(
    """SELECT_NODE SET_OPERATION_NODE BASE_TABLE SUBQUERY JOIN TABLE_FUNCTION EXPRESSION_LIST EMPTY ORDER_MODIFIER
    LIMIT_MODIFIER LIMIT_PERCENT_MODIFIER DISTINCT_MODIFIER ORDER_DEFAULT ASCENDING DESCENDING""".split()  # noqa: SIM905
)
_WORD = re.compile(rb"\w+")
_NAMES = frozenset(spec.name for spec in TABLES)

Pieces = tuple[bytes, ...]
"""A query without its texts in quotes: queries with the same pieces differ in these only."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a query names a table: `piece`, and the bytes in it from `begin` to `end`."""

    piece: int
    begin: int
    end: int
    table: str
    named: bool
    """Whether the query gives it a name of its own."""
    gpus: tuple[int, ...] | None
    """The texts of the query that `gpu` must be one of, by number; None: it may be any."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The columns that a query names, and where it names tables."""

    columns: frozenset[str]
    spots: tuple[Spot, ...]

    @property
    def of_gpus(self) -> bool:
        """Whether it asks for some GPUs only, so that few files need be opened."""
        return any(spot.gpus is not None for spot in self.spots)


NOTHING = Asked(frozenset(), ())


def pieces_of(query: bytes) -> tuple[Pieces, list[bytes]]:
    """A query in pieces, and its texts in quotes between them."""
    if _ODD.search(query):
        return (query,), []
    parts = _CONSTANT.split(query)
    pieces = tuple(parts[::2])
    if any(_PREFIX.search(piece) for piece in pieces[:-1]):
        return (query,), []
    return pieces, parts[1::2]


def joined(pieces: list[bytes], constants: list[bytes]) -> bytes:
    """The query of some pieces and texts."""
    every = [b""] * (len(pieces) + len(constants))
    every[::2], every[1::2] = pieces, constants
    return b"".join(every)


def asked(tree: Tree, query: bytes, statement: bytes) -> Asked:
    """What a query asks, by the syntax tree of its only statement."""
    before = query.find(statement)
    if before < 0 or query[:before].strip():
        return NOTHING  # the places in the tree are those in the statement
    columns: set[str] = set()
    relations: set[str] = set()
    for node in nodes(tree):
        kind, group = node.get("type"), node.get("class")
        known = group in _EXPRESSIONS if group else not isinstance(kind, str) or kind in _PARTS
        own = node.get("key")  # the name of a common table
        if not known or node.get("ref_type") == "NATURAL" or (isinstance(own, str) and own.lower() in _NAMES):
            return NOTHING
        columns |= {name.lower() for name in (*node.get("column_names", ()), *node.get("using_columns", ()))}
        if not group and isinstance(kind, str):
            relations |= {str(node.get(one)).lower() for one in ("alias", "table_name") if node.get(one)}
    rows = (node["column_names"][-1].lower() for node in nodes(tree) if node.get("column_names"))
    if not relations.isdisjoint(rows):
        return NOTHING
    return Asked(frozenset(columns), tuple(_spots(tree, query, before)))


def _spots(tree: Tree, query: bytes, before: int) -> Iterator[Spot]:
    pieces, constants = pieces_of(query)
    begins: list[int] = []  # of the pieces
    at = -before
    for piece, text in zip(pieces, [*constants, b""], strict=False):
        begins.append(at)
        at += len(piece) + len(text)
    texts = {begin - len(text): number for number, (begin, text) in enumerate(zip(begins[1:], constants, strict=True))}
    # A subquery in an expression is written out in the name of its column.
    inside = {id(within) for node in nodes(tree) if node.get("class") == "SUBQUERY" for within in nodes(node)}
    alone = {id(n["from_table"]): n for n in nodes(tree) if n.get("type") == "SELECT_NODE" and n.get("where_clause")}
    for node in nodes(tree):
        name, begin = str(node.get("table_name")).lower(), node.get("query_location", -1)
        if node.get("type") != "BASE_TABLE" or name not in _NAMES or id(node) in inside:
            continue
        if any(node.get(more) for more in ("schema_name", "catalog_name", "at_clause", "column_name_alias")):
            continue
        place = bisect.bisect(begins, begin) - 1
        here = begin - begins[place]
        found = _WORD.match(pieces[place], here) if here < len(pieces[place]) else None
        if found is None or found[0].decode().lower() != name:
            continue  # in quotes, or made up by DuckDB
        only = None
        if id(node) in alone and name == TELEMETRY.name:
            only = _gpus(alone[id(node)]["where_clause"], {name, str(node.get("alias")).lower()}, texts)
        yield Spot(place, here, found.end(), name, bool(node.get("alias")), only)


def _gpus(where: Tree, names: set[str], texts: dict[int, int]) -> tuple[int, ...] | None:
    """The texts that `gpu` must be one of where a condition holds, by number; None if it may be any."""
    if where.get("type") == "CONJUNCTION_AND":
        every = (_gpus(one, names, texts) for one in where["children"])
        return next((found for found in every if found is not None), None)
    if where.get("type") == "COMPARE_EQUAL":
        sides = [where["left"], where["right"]]
    elif where.get("type") == "COMPARE_IN":
        sides = list(where["children"])
    else:
        return None
    column = [side for side in sides if _is_gpu(side, names)]
    found = [texts.get(side["query_location"]) for side in sides if _is_text(side)]
    if len(column) != 1 or len(found) != len(sides) - 1 or (len(sides) > 2 and column[0] is not sides[0]):
        return None
    return None if None in found else tuple(number for number in found if number is not None)


def _is_gpu(side: Tree, names: set[str]) -> bool:
    path: list[Any] = [part.lower() for part in side.get("column_names", ())]
    return path == ["gpu"] or (len(path) == 2 and path[0] in names and path[1] == "gpu")


def _is_text(side: Tree) -> bool:
    return side.get("type") == "VALUE_CONSTANT" and (side.get("literal") or {}).get("kind") == "STRING"
