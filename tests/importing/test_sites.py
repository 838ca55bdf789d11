"""Streams of nvidia-smi as sites have them: GPUs that vanish, are numbered anew, or are parts of one; several hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from whorl.store import Store
from whorl.store.importing import Options, import_file

Refusal = Callable[..., str]

UUID = "GPU-0a1b2c3d-0000-1111-2222-333344445500"
MIG = "MIG-0a1b2c3d-0000-1111-2222-333344445599"
BUS = ("00000000:07:00.0", "00000000:0A:00.0", "00000000:47:00.0")


def stream(names: str, *rows: str, minute: int = 0) -> str:
    """A log with a row each second."""
    lines = [f"2025/11/03 10:{minute:02d}:{second:02d}.000, {row}" for second, row in enumerate(rows)]
    return "\n".join([f"timestamp, {names}", *lines, ""])


NUMBERED = stream("index, pci.bus_id, power.draw [W]", *(f"{n}, {bus}, {n + 1}00 W" for n, bus in enumerate(BUS)))
BEHIND = stream("index, pci.bus_id, power.draw [W]", f"0, {BUS[0]}, 100 W", f"1, {BUS[2]}, 300 W", minute=1)

# What is written, and of what is stored: the GPUs with their power in W, kinds of events with their GPU.
CASES: dict[str, tuple[str, list[tuple[str, int | None]], list[tuple[str, str | None]]]] = {
    "a lost GPU moves the numbers of those behind it": (
        NUMBERED + BEHIND.partition("\n")[2],
        [("n1:0", 100), ("n1:0", 100), ("n1:1", 200), ("n1:2", 300), ("n1:2", 300)],
        [],
    ),
    "even the time says that it is lost": (
        stream("uuid, power.draw [W]", f"{UUID}, 70 W") + "[GPU is lost], [GPU is lost], [GPU is lost]\n",
        [(UUID, 70)],
        [("lost", None)],
    ),
    "an instance is not the GPU of its row's number": (
        stream("index, uuid, memory.used [MiB], power.draw [W]", f"0, {UUID}, 12 MiB, 70 W", f"0, {MIG}, 5 MiB, [N/A]"),
        [(UUID, 70), (MIG, None)],
        [],
    ),
    "an instance as drivers until 465 call it": (
        stream("uuid, memory.used [MiB], power.draw [W]", f"{UUID}, 12 MiB, 70 W", f"MIG-{UUID}/1/0, 5 MiB, [N/A]"),
        [(UUID, 70), (f"MIG-{UUID}/1/0", None)],
        [],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_gpu_has_its_own_readings(case: str, store: Store, tmp_path: Path) -> None:
    text, readings, events = CASES[case]
    (tmp_path / "smi.csv").write_text(text)
    import_file(store, tmp_path / "smi.csv", Options(node="n1"))
    stored = store.sql("SELECT gpu, power_mw // 1000 FROM telemetry ORDER BY gpu, ts").polars().rows()
    assert stored == readings
    assert store.sql("SELECT kind, gpu FROM events").polars().rows() == events
    parents = store.sql("SELECT gpu, name, parent FROM gpus_now WHERE gpu LIKE 'MIG-%'").polars().rows()
    assert all(name == gpu and parent == UUID for gpu, name, parent in parents)


def test_the_address_that_the_store_knows_is_the_gpu_in_a_later_file(store: Store, tmp_path: Path) -> None:
    for name, text in (("a.csv", NUMBERED), ("b.csv", BEHIND)):
        (tmp_path / name).write_text(text)
        import_file(store, tmp_path / name, Options(node="n1"))
    counts = store.sql("SELECT gpu, count(*) FROM telemetry GROUP BY gpu ORDER BY gpu").polars().rows()
    assert counts == [("n1:0", 2), ("n1:1", 1), ("n1:2", 2)]


def test_logs_of_the_same_time_are_of_several_hosts(refusal: Refusal, tmp_path: Path) -> None:
    log = stream("index, power.draw [W]", *(f"0, 7{n}.5 W" for n in range(6)))
    (tmp_path / "all.csv").write_text(log + log.replace(".000,", ".500,").replace("7", "17"))
    assert "of several hosts; split the file" in refusal(tmp_path / "all.csv", node="n1")
    (tmp_path / "processes.csv").write_text("timestamp, pid, gpu_uuid, used_gpu_memory [MiB]\n1, 2, 3, 4\n")
    assert "about processes" in refusal(tmp_path / "processes.csv")


def test_yes_is_one(store: Store, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(stream("uuid, remapped_rows.failure", f"{UUID}, Yes", f"{UUID}, No"))
    import_file(store, tmp_path / "rows.csv", Options())
    assert store.sql("SELECT row_remap_failed FROM telemetry ORDER BY ts").polars().rows() == [(1,), (0,)]
