"""Where the bindings of DCGM are looked for, and what DCGM's values mean."""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from whorl.collectors.backends import Status
from whorl.collectors.dcgm import bindings as looking
from whorl.collectors.dcgm.bindings import find_bindings
from whorl.collectors.dcgm.reading import BLANK, BLANK_DOUBLE, Reader
from whorl.errors import InputError
from whorl.store.metrics import METRICS

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
    assert find_bindings().where == str(four)
    for name in MODULES:
        del sys.modules[name]
    monkeypatch.setenv("WHORL_PYDCGM_PATH", str(given))
    sys.path.remove(str(four))
    found = find_bindings()
    assert found.where == str(given)
    assert found.pydcgm.__name__ == "pydcgm"
    assert sys.path[-1] == str(given)  # at the end, where it hides nothing


@pytest.mark.usefixtures("clean")
def test_bindings_that_cannot_be_imported_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder(tmp_path / "broken", DcgmHandle="import no_such_module_anywhere\n")
    whole = folder(tmp_path / "whole")
    monkeypatch.setattr(looking, "FOLDERS", (str(broken), str(whole)))
    assert find_bindings().where == str(whole)
    assert str(broken) not in sys.path


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


def value(field: int, kind: str, number: float, *, status: int = 0, ts: int = 5) -> bytes:
    """A value as the engine gives it: the first bytes of c_dcgmFieldValue_v1."""
    form = "d" if kind == "d" else "q"
    return struct.pack(f"<IHhiiq{form}", 0x1001018, field, ord(kind), status, 0, ts, number)


def decoded(*values: bytes, entity: int = 1 << 32) -> list[tuple[str, int, Status]]:
    """Values of the GPU 0, read: the metric, its value, and what became of it."""
    reader = Reader.__new__(Reader)
    reader._entities, reader._devices = np.array([1 << 32], np.int64), np.array([0], np.intp)
    reader._rows, reader._scales, reader._blanks = looking_tables()
    reader._heads, reader._from = list(values), [entity] * len(values)
    got = reader._decode()
    return [
        (METRICS[row].name, int(number), Status(status))
        for row, number, status in zip(got.row, got.value, got.status, strict=True)
    ]


def looking_tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    from whorl.collectors.dcgm.reading import _tables

    return _tables()


def test_values_come_in_the_unit_of_their_column() -> None:
    assert decoded(
        value(155, "d", 123.4567),
        value(156, "i", 2**40),
        value(252, "i", 3),
        value(1002, "d", 0.25),
        value(150, "i", -4),
    ) == [
        ("power_mw", 123457, Status.OK),
        ("energy_mj", 2**40, Status.OK),
        ("memory_used", 3 * 2**20, Status.OK),
        ("sm_active_ppm", 250_000, Status.OK),
        ("temperature_c", -4, Status.OK),
    ]


@pytest.mark.parametrize(
    ("blank", "status"),
    [(0, Status.UNREAD), (1, Status.UNSUPPORTED), (2, Status.UNSUPPORTED), (3, Status.DENIED), (9, Status.DENIED)],
)
def test_blanks_are_no_numbers(blank: int, status: Status) -> None:
    assert decoded(value(155, "d", BLANK_DOUBLE + blank), value(156, "i", BLANK + blank)) == [
        ("power_mw", 0, status),
        ("energy_mj", 0, status),
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e300, 1.7e308])
def test_what_is_no_number_of_a_sensor_is_null(number: float) -> None:
    ((_, kept, status),) = decoded(value(155, "d", number))
    assert status != Status.OK
    assert kept == 0


def test_a_blank_of_32_bits_is_a_number_only_of_a_counter() -> None:
    assert decoded(value(156, "i", 0x7FFFFFF0), value(100, "i", 0x7FFFFFF2), value(100, "i", 0x7FFFFFEF)) == [
        ("energy_mj", 0x7FFFFFF0, Status.OK),
        ("sm_clock_mhz", 0, Status.UNSUPPORTED),
        ("sm_clock_mhz", 0x7FFFFFEF, Status.OK),
    ]


@pytest.mark.parametrize(("field", "kind", "number"), [(1002, "d", 1e14), (252, "i", 2**50)])
def test_a_number_beyond_all_in_its_unit_is_none(field: int, kind: str, number: float) -> None:
    ((_, kept, status),) = decoded(value(field, kind, number))
    assert (kept, status) == (0, Status.FAILED)


@pytest.mark.parametrize(
    ("code", "status"),
    [(-6, Status.UNSUPPORTED), (-17, Status.DENIED), (-18, Status.LOST), (-16, Status.UNREAD), (-3, Status.FAILED)],
)
def test_the_status_of_a_value_counts(code: int, status: Status) -> None:
    assert decoded(value(150, "i", 40, status=code)) == [("temperature_c", 0, status)]


def test_what_has_no_time_no_column_or_no_gpu_of_ours_is_dropped() -> None:
    assert decoded(value(150, "i", 40, ts=0), value(9999, "i", 1)) == []
    assert decoded(value(150, "i", 40), entity=4 << 32) == []
