"""Answers of the SQL page that a browser comes back to: to draw them, and to save the whole of one as a file."""

from __future__ import annotations

import secrets
import tempfile
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl
import pyarrow as pa
from flask import Response, request, send_file

from ....errors import QueryError
from .processes import Console

if TYPE_CHECKING:
    from flask import Flask

    from .processes import QueryLimits
    from .worker import FirstRows, Written
    from .writing import Form

_KEPT = 12
_FILES = 4
ROUTE = "sql-file"


@dataclass(frozen=True)
class Answer:
    """What was answered to a query, and what of it can be drawn."""

    query: str
    stream: bytes
    whole: bool
    """Whether all its rows can be drawn."""

    def points(self) -> pl.DataFrame:
        """The columns that can be drawn: numbers, times and texts."""
        with pa.ipc.open_stream(self.stream) as stream:
            return cast("pl.DataFrame", pl.from_arrow(stream.read_all()))


class Answers:
    """Runs queries and keeps the last answers, each under a name that nobody can guess.

    So a link of somebody else runs nothing: only who has run a query knows the name under which it can be saved.
    """

    def __init__(self, root: Path, limits: QueryLimits) -> None:
        self.console = Console(root, limits)
        self._kept: OrderedDict[str, Answer] = OrderedDict()
        self._files: OrderedDict[str, Path] = OrderedDict()
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def ask(self, query: str, who: str) -> tuple[str, FirstRows]:
        """Run a query; the name of the answer, and the answer. Raises QueryError."""
        shown = self.console.show(query, who)
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._kept[name] = Answer(query, shown.points, shown.drawn == shown.total)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return name, shown

    def find(self, name: str) -> Answer:
        """An answer. Raises QueryError where it is not kept any more."""
        with self._lock:
            if name not in self._kept:
                raise QueryError("this answer is not kept any more: run the query again")
            self._kept.move_to_end(name)
            return self._kept[name]

    def write(self, name: str, form: Form, who: str) -> tuple[str, Written]:
        """Write the whole answer to a file; where a browser finds it, and how large it is. Raises QueryError."""
        query = self.find(name).query
        file = f"{secrets.token_urlsafe(16)}.{form}"
        with self._lock:
            if self._folder is None:
                held = tempfile.TemporaryDirectory(prefix="whorl-sql-")
                weakref.finalize(self, held.cleanup)
                self._folder = Path(held.name)
        path = self._folder / file
        written = self.console.write(query, form, path, who)
        with self._lock:
            self._files[file] = path
            while len(self._files) > _FILES:
                self._files.popitem(last=False)[1].unlink(missing_ok=True)
        return f"{ROUTE}?name={file}", written

    def install(self, server: Flask) -> None:
        """Let browsers fetch the files."""

        @server.get(f"/{ROUTE}")
        def file() -> Response:
            with self._lock:
                path = self._files.get(request.args.get("name", ""))
            if path is None or not path.exists():
                said = "This file is not kept any more: save it again on the page SQL.\n"
                return Response(said, HTTPStatus.GONE, content_type="text/plain; charset=utf-8")
            return send_file(path, as_attachment=True, download_name=f"answer{path.suffix}")
