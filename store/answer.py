"""The answer to a query: an Arrow table that shows itself in a notebook and at a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa


class ArrowAnswer:
    """The answer of `Store.sql`. It has every attribute of a `pyarrow.Table`, and every reader of Arrow reads it.

    `table` is the Arrow table itself. `polars()` gives a Polars frame; `to_pandas()` a pandas frame, if pandas is
    installed.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def polars(self) -> pl.DataFrame:
        """The answer as a Polars frame."""
        import polars as pl

        frame = pl.from_arrow(self.table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def equals(self, another: Any, *arguments: Any, **options: Any) -> bool:
        """Whether another table or answer has the same content."""
        return bool(self.table.equals(getattr(another, "table", another), *arguments, **options))

    def __eq__(self, another: object) -> bool:
        return self.equals(another)

    __hash__ = None  # type: ignore[assignment]  # as of a table

    def __getattr__(self, name: str) -> Any:
        if name == "table" or name.startswith("_"):  # while it is unpickled, or asked for by a protocol
            raise AttributeError(name)
        return getattr(self.table, name)

    def __getitem__(self, key: Any) -> Any:
        return self.table[key]

    def __len__(self) -> int:
        return len(self.table)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return self._text("__repr__")

    def _repr_html_(self) -> str:
        return self._text("_repr_html_")

    def _text(self, method: str) -> str:
        try:
            return str(getattr(self.polars(), method)())
        except Exception:  # a type that Polars does not have, such as an interval
            return str(self.table)
