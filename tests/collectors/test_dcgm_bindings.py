"""Where the bindings of DCGM are looked for, and what DCGM's values mean."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whorl.collectors.backend import Status
from whorl.collectors.dcgm import bindings as looking
from whorl.collectors.dcgm.bindings import BLANK, BLANK_DOUBLE, find_bindings
from whorl.collectors.dcgm.connection import Value
from whorl.collectors.dcgm.dcgm import decode
from whorl.errors import InputError

MODULES = {
    "pydcgm": "import DcgmHandle\nimport dcgm_structs\n",
    "DcgmHandle": "",
    "dcgm_agent": "import dcgm_structs\n",
    "dcgm_structs": "class DCGMError(Exception): pass\n",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a new process is: without bindings, and with the search path as it was afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WHORL_PYDCGM_PATH", raising=False)
    monkeypatch.setattr(looking, "FOLDERS", ())
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


def folder(path: Path, **changed: str) -> Path:
    """A folder as DCGM installs it."""
    path.mkdir(exist_ok=True)
    for name, text in (MODULES | changed).items():
        (path / f"{name}.py").write_text(text)
    return path


@pytest.mark.usefixtures("clean")
def test_the_folder_in_the_environment_comes_first_then_the_newest_dcgm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, four, three = (folder(tmp_path / name) for name in ("given", "four", "three"))
    monkeypatch.setattr(looking, "FOLDERS", (str(tmp_path / "absent"), str(four), str(three)))
    assert find_bindings().folder == str(four)
    for name in MODULES:
        del sys.modules[name]
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    sys.path.remove(str(four))
    found = find_bindings()
    assert found.folder == str(given)
    assert found.pydcgm.__name__ == "pydcgm"
    assert sys.path[-1] == str(given)  # at the end, where it hides nothing


@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, r"WHORL_PYDCGM_PATH is .*, and there is no pydcgm.py in it: give the folder of DCGM's Python bindings"),
        (
            {"DcgmHandle": "import nowhere_to_be\n"},
            r"the DCGM bindings in .* cannot be imported: No module named 'nowhere",
        ),
        ({"dcgm_structs": "1 / 0\n"}, r"cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_wrong_folder_in_the_environment_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], says: str
) -> None:
    given = folder(tmp_path / "given", **files) if files else tmp_path
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    with pytest.raises(InputError, match=says):
        find_bindings()


@pytest.mark.usefixtures("clean")
def test_a_file_that_hides_one_of_the_modules_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, other = folder(tmp_path / "given"), tmp_path / "other"
    other.mkdir()
    (other / "dcgm_agent.py").write_text("")
    monkeypatch.syspath_prepend(str(other))
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    with pytest.raises(
        InputError, match=r"other/dcgm_agent.py has the same name as one of its modules and comes first"
    ):
        find_bindings()


@pytest.mark.usefixtures("clean")
def test_without_any_bindings_the_sentence_says_where_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "PACKAGE", "no.such.package")
    with pytest.raises(
        InputError, match=r"\(pydcgm\) were not found: install DCGM, or give their folder in WHORL_PYDCGM"
    ):
        find_bindings()


BLANKS = {0: Status.UNREAD, 1: Status.UNSUPPORTED, 2: Status.UNSUPPORTED, 3: Status.DENIED, 9: Status.DENIED}


def value(field: int, kind: str, number: float, *, status: int = 0) -> Value:
    """A value as the engine gives it."""
    (bits,) = struct.unpack("q", struct.pack("d" if kind == "d" else "q", number))
    return Value((1, 0), field, ord(kind), status, 5, bits)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (value(155, "d", 123.4567), 123457),
        (value(156, "i", 2**40), 2**40),
        (value(252, "i", 3), 3 * 2**20),
        (value(1002, "d", 0.25), 250_000),
        (value(150, "i", -4), -4),
        (value(156, "i", 0x7FFFFFF0), 0x7FFFFFF0),  # a blank of 32 bits is a number only of a counter
        (value(100, "i", 0x7FFFFFF2), Status.UNSUPPORTED),
        (value(100, "i", 0x7FFFFFEF), 0x7FFFFFEF),
        *((value(155, "d", number), Status.FAILED) for number in (float("nan"), float("inf"), float("-inf"))),
        (value(155, "d", 1e300), Status.DENIED),
        (value(1002, "d", 1e14), Status.FAILED),  # beyond all in its unit
        (value(252, "i", 2**50), Status.FAILED),
        *((value(155, "d", BLANK_DOUBLE + blank), status) for blank, status in BLANKS.items()),
        *((value(156, "i", BLANK + blank), status) for blank, status in BLANKS.items()),
        (value(150, "i", 40, status=-6), Status.UNSUPPORTED),
        (value(150, "i", 40, status=-17), Status.DENIED),
        (value(150, "i", 40, status=-18), Status.LOST),
        (value(150, "i", 40, status=-19), Status.NEEDS_RESET),
        (value(150, "i", 40, status=-16), Status.UNREAD),
        (value(150, "i", 40, status=-3), Status.FAILED),
    ],
)
def test_a_value_is_a_number_in_the_unit_of_its_column_or_says_why_not(given: Value, expected: int | Status) -> None:
    assert decode(given) == ((0, expected) if isinstance(expected, Status) else (expected, Status.OK))
