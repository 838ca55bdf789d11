"""What the import tests share: real files where they are, writing of small files, a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from whorl.errors import InputError
from whorl.store.importing import Options, Parsed, read_file

DATA = Path(__file__).parents[3] / "shared" / "data"

Write = Callable[..., Path]


@pytest.fixture
def real() -> Callable[[str], Path]:
    """A real file by its place in ../shared/data, or a skip."""

    def find(name: str) -> Path:
        path = DATA / name
        if not path.exists():
            pytest.skip(f"{path} is not there: real measurements are not part of the project")
        return path

    return find


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of a header and rows of anything; returns its path."""

    def make(header: str, rows: Sequence[Sequence[object]] | str, name: str = "file.csv", end: str = "\n") -> Path:
        lines = rows.split("\n") if isinstance(rows, str) else [",".join(str(cell) for cell in row) for row in rows]
        path = tmp_path / name
        path.write_bytes(end.join([header, *lines, ""]).encode())
        return path

    return make


@pytest.fixture
def refusal() -> Callable[..., str]:
    """Read a file that must be refused; returns the sentence, which names the file and is one line."""

    def read(path: Path, **options: object) -> str:
        with pytest.raises(InputError) as caught:
            read_file(path, Options(**options))  # type: ignore[arg-type]
        sentence = str(caught.value)
        assert "\n" not in sentence
        return sentence

    return read


@pytest.fixture
def parse() -> Callable[..., Parsed]:
    def read(path: Path, **options: object) -> Parsed:
        return read_file(path, Options(**options))  # type: ignore[arg-type]

    return read
