"""Neighbours that stall, and pages of any size: each costs only itself, in bounded time and memory."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from whorl.collectors.backend import Reading
from whorl.collectors.exporter.exporter import ExporterPages
from whorl.collectors.exporter.page import PageLimits
from whorl.errors import InputError
from whorl.store.events import Event
from whorl.store.metrics import ROW
from whorl.tests.endless import GIVE_UP_S, HUGE, serving
from whorl.tests.exporter import Answer, Exported, exporting, page, usual, uuid

GOOD = page([Exported(0, usual())])
MOST_MB = 256


def powers(backend: ExporterPages, gpus: list[str], events: list[Event] | None = None) -> list[tuple[str, int]]:
    """The GPU and power of each new reading, after adding what happened to `events`."""
    given = list(backend.read(gpus, slow=False))
    if events is not None:
        events += [event for event in given if isinstance(event, Event)]
    return [(r.gpu, r.values[ROW["power_mw"]] // 1000) for r in given if isinstance(r, Reading)]


def test_of_two_exporters_one_stalls_and_the_other_is_read_at_every_tick() -> None:
    watts, stalled, go_on = [100], threading.Event(), threading.Event()

    def stalling(_: str) -> Answer:
        if watts[0] > 100 and not go_on.is_set():
            stalled.set()
            go_on.wait(GIVE_UP_S)
        return Answer(page([Exported(1, usual(watts[0]), node="b")]))

    with exporting(lambda _: Answer(page([Exported(0, usual(watts[0]))]))) as good, exporting(stalling) as bad:
        backend = ExporterPages(url=[bad.url, good.url], interval_s=0.2, timeout_s=GIVE_UP_S)
        gpus = [device.gpu for device in backend.devices()]
        assert powers(backend, gpus) == [(uuid(1), 100), (uuid(0), 100)]
        for watts[0] in range(101, 140):
            read: list[tuple[str, int]] = []
            while not read:  # this machine may be busy: then the page comes with the next tick
                read = powers(backend, gpus)
            assert read == [(uuid(0), watts[0])]
        assert stalled.is_set()
        assert len(bad.asked) == 2
        go_on.set()
        while (uuid(1), 139) not in read:  # what came late is not lost
            read = powers(backend, gpus)
        backend.close()


@pytest.mark.parametrize("attack", HUGE)
def test_no_more_of_a_page_is_read_than_the_limit(attack: str) -> None:
    with serving(HUGE[attack], pause_s=0) as (place, sent), pytest.raises(InputError, match="more than 65536 bytes"):
        ExporterPages(url=f"http://{place}", timeout_s=GIVE_UP_S, limits=PageLimits(page_bytes=1 << 16)).devices()
    assert sent[0] < 64 << 20  # what was read, and what the kernel holds


def test_limit_of_lines() -> None:
    with exporting(GOOD) as exporter, pytest.raises(InputError, match="its page has more than 3 lines"):
        ExporterPages(url=exporter.url, limits=PageLimits(lines=3)).devices()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(0)}",a="{"x" * 2000}"}} 1', "it has more than 1000 bytes"),
        (f'DCGM_FI_DEV_GPU_TEMP{{UUID="GPU-{"1" * 300}"}} 1', "a label has more than 200 characters"),
        (f'DCGM_FI_DEV_GPU_TEMP{{UUID="{uuid(0)}",modelName="{"x" * 300}"}} 1', "a label has more than 200 characters"),
    ],
)
def test_a_long_line_or_label_costs_only_its_line(line: str, why: str) -> None:
    events: list[Event] = []
    with exporting(f"{line}\n{GOOD}") as exporter:
        backend = ExporterPages(url=exporter.url, limits=PageLimits(line_bytes=1000))
        assert [device.gpu for device in backend.devices()] == [uuid(0)]
        assert powers(backend, [uuid(0)], events) == [(uuid(0), 155)]
        backend.close()
    assert [event.detail for event in events] == [
        f"{exporter.url}: line 1 of the page cannot be read ({why}); it is left out"
    ]


def test_gpus_beyond_the_limit_are_left_out_and_that_is_told() -> None:
    events: list[Event] = []
    with exporting(page([Exported(number, usual()) for number in range(5)])) as exporter:
        backend = ExporterPages(url=exporter.url, limits=PageLimits(gpus=3))
        gpus = [device.gpu for device in backend.devices()]
        assert gpus == [uuid(0), uuid(1), uuid(2)]
        assert [gpu for gpu, _ in powers(backend, gpus, events)] == gpus
        backend.close()
    assert [event.detail for event in events] == [
        f"{exporter.url}: the page has more than 3 GPUs; the others are left out"
    ]


def test_a_gpu_on_two_pages_is_read_from_the_first() -> None:
    with exporting(page([Exported(0, usual(100))])) as first, exporting(page([Exported(0, usual(200))])) as second:
        backend = ExporterPages(url=[first.url, second.url])
        assert [device.gpu for device in backend.devices()] == [uuid(0)]
        assert powers(backend, [uuid(0)]) == [(uuid(0), 100)]
        backend.close()


# -- memory -------------------------------------------------------------------------------------------------

_CHILD = """
import sys
from whorl.collectors.exporter.exporter import ExporterPages
from whorl.errors import InputError
backend = ExporterPages(url=sys.argv[1], timeout_s=60.0)
for _ in range(2):
    try:
        gpus = [device.gpu for device in backend.devices()]
        print(len(gpus), len(list(backend.read(gpus, slow=True))))
    except InputError as error:
        print(error)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
_LABELS = b'device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="n1"'


def _series(number: int) -> bytes:
    lines = (b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-%d",pod="p%d",%s} 40\n' % (n % 5000, n, _LABELS) for n in range(number))
    return b"".join(lines)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: _series(500_000), "bytes; ask for fewer series"),
        (lambda: b'DCGM_FI_DEV_GPU_TEMP{UUID="%s"} 40\n' % (b"x" * 60_000_000), "bytes; ask for fewer series"),
        (lambda: _series(59_900), "4096 "),
    ],
    ids=["500,000 series", "a line of 60 MB", "as much as may be"],
)
def test_memory_of_a_large_page(make: Callable[[], bytes], words: str) -> None:
    answer = Answer(make())
    with exporting(lambda _: answer) as exporter:
        child = [sys.executable, "-c", _CHILD, exporter.url]
        done = subprocess.run(child, capture_output=True, text=True, check=True, timeout=300)
    first, *_, kilobytes = done.stdout.splitlines()
    assert words in first
    assert int(kilobytes) < MOST_MB << 10
