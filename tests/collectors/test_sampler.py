"""The loop that reads: what it does when GPUs, the driver or the clock misbehave; the real bindings throughout."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from whorl.collectors.backend import Device
from whorl.collectors.nvml import Nvml
from whorl.collectors.recording import identify, identity_table
from whorl.collectors.simulated import Simulated
from whorl.errors import StoreError
from whorl.store import Store
from whorl.store.journal_file import Ticks
from whorl.tests.collectors.sampling import BUSY, Kept, Running, Turned, sampler_of, sampling
from whorl.tests.nvml_library import NvmlLibrary

READINGS = ("power_mw", "energy_mj", "sm_clock_mhz", "temperature_c", "utilization")


def silent(running: Running, position: int) -> bool:
    """Whether the last tick knew nothing of a GPU."""
    row = running.kept.of(running.gpus[position])[-1]
    return all(row[name] is None for name in READINGS)


# GPUs that do not answer


def test_a_lost_gpu_is_null_and_told_once_and_comes_back(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 4")
    with sampling() as running:
        gpu = running.gpus[2]
        running.ticks(5)
        nvml.add("gpu 2 lost")
        running.until(lambda: "lost" in running.kept.kinds(gpu))
        running.ticks(30)
        assert running.kept.kinds(gpu).count("lost") == 1
        assert silent(running, 2)
        last = running.kept.of(gpu)[-1]
        assert (last["quality"], last["read_us"]) == ("lost", None)
        assert not any(silent(running, position) for position in (0, 1, 3))
        nvml.remove("gpu 2 lost")
        running.until(lambda: "returned" in running.kept.kinds(gpu))
        running.until(lambda: not silent(running, 2))
        running.ticks(5)
        assert running.kept.of(gpu)[-1]["quality"] is None
        assert running.kept.kinds(gpu).count("returned") == 1
        expected = {"lost", "returned", "counter_reset", "not_supported"}
        assert set(running.kept.kinds()) <= expected | BUSY


def test_a_gpu_lost_before_the_start_is_taken_in_when_it_comes(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 3", "gpu 1 lost")
    with sampling() as running:
        assert len(running.gpus) == 2
        running.until(lambda: running.kept.kinds(None).count("lost") == 1)
        assert "index 1" in running.kept.detail("lost")
        nvml.remove("gpu 1 lost")
        running.until(lambda: "appeared" in running.kept.kinds())
        running.until(lambda: len(running.kept.batches[-1]) == 3)
        running.until(lambda: len(running.kept.identities[-1]) == 3)
        new = running.kept.identities[-1][2].gpu
        running.until(lambda: running.kept.of(new)[-1]["power_mw"] is not None)


def test_a_driver_that_is_loaded_again(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2")
    with sampling() as running:
        running.ticks(5)
        before = running.kept.of(running.gpus[0])[-1]["energy_mj"]
        nvml.add(f"from {time.time()} reload 0.6")
        running.until(lambda: "driver_gone" in running.kept.kinds())
        running.until(lambda: running.kept.rows[-1]["quality"] == "no_driver")
        assert silent(running, 0)
        assert silent(running, 1)
        running.until(lambda: "driver_reloaded" in running.kept.kinds())
        running.until(lambda: not silent(running, 0) and not silent(running, 1))
        running.until(lambda: all("counter_reset" in running.kept.kinds(gpu) for gpu in running.gpus))
        assert running.kept.of(running.gpus[0])[-1]["energy_mj"] < before
        assert running.kept.kinds().count("driver_gone") == 1
        assert running.kept.of(running.gpus[0])[-1]["quality"] is None
        assert "returned" not in running.kept.kinds()


# Calls that hang


def test_a_call_that_hangs_stops_its_gpu_only_and_not_the_end(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 4")
    with sampling(hung_s=0.3) as running:
        gpu = running.gpus[1]
        running.ticks(3)
        nvml.add("gpu 1 hang")
        running.until(lambda: "hung" in running.kept.kinds(gpu))
        running.ticks(20)
        assert silent(running, 1)
        assert running.kept.of(gpu)[-1]["quality"] == "hung"
        assert not any(silent(running, position) for position in (0, 2, 3))
        nvml.remove("gpu 1 hang")
        running.until(lambda: "answers_again" in running.kept.kinds(gpu))
        running.until(lambda: not silent(running, 1))
        running.ticks(5)
        assert running.kept.of(gpu)[-1]["quality"] is None
        nvml.add("gpu 3 hang")
        running.until(lambda: "hung" in running.kept.kinds(running.gpus[3]))
        running.end()
        assert running.counts is not None
        nvml.remove("gpu 3 hang")
    assert running.kept.kinds().count("hung") == 2
    assert "missed_ticks" in running.kept.kinds()


@pytest.mark.long(short=1)
@pytest.mark.parametrize("function", ["nvmlEventSetWait_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetCount_v2"])
def test_a_hanging_call_that_is_of_no_gpu(nvml: NvmlLibrary, function: str) -> None:
    nvml.write("gpus 2")
    with sampling(hung_s=0.2) as running:
        running.ticks(3)
        nvml.add(f"hang {function}")
        running.until(lambda: "hung" in running.kept.kinds())
        running.ticks(90)  # the driver's events are looked at every second: only one thread hangs in them
        assert not silent(running, 0)
        assert not silent(running, 1)
        assert running.kept.kinds().count("hung") == 1
        nvml.remove(f"hang {function}")
        running.until(lambda: "answers_again" in running.kept.kinds())
        now = time.time() + 0.05
        nvml.add(f"from {now} gpu 1 xid 48")  # both ways to news work again
        running.until(lambda: "xid" in running.kept.kinds())
        nvml.add("gpu 0 lost")
        running.until(lambda: "lost" in running.kept.kinds())
        nvml.remove("gpu 0 lost")
        running.until(lambda: "returned" in running.kept.kinds())


# The grid and the clocks


def turned(clock: Turned, **more: float) -> Kept:
    kept = Kept()
    given: dict[str, Any] = {"interval_s": 0.1, "slow_s": 10.0} | more
    sampler_of(Simulated(gpus=2), kept, clock=clock, **given).run(30.0)
    return kept


def instants(kept: Kept, number: int = 0) -> list[int]:
    return [row["ts"] for row in kept.of(kept.identities[0][number].gpu)]


def test_the_grid_does_not_drift() -> None:
    clock = Turned()
    began = clock.wall()
    assert instants(turned(clock)) == [began + k * 100_000_000 for k in range(300)]


def test_a_thread_held_up_between_two_clocks_stamps_the_time_at_which_it_reads() -> None:
    class Interrupted(Turned):
        """Every third time the wall clock is read after 12 ms in which another process ran."""

        looks = 0

        def wall(self) -> int:
            self.looks += 1
            self.now += 12_000_000 * (self.looks % 3 == 0)
            return super().wall()

    clock = Interrupted()
    one, two = (instants(kept, number) for kept in [turned(clock)] for number in (0, 1))
    assert clock.looks > 300
    assert len(one) == 300
    assert one == two  # to read takes no time here


def test_slow_metrics_are_read_at_their_own_pace() -> None:
    kept = turned(Turned(), slow_s=5.0)
    gpu = kept.identities[0][0].gpu
    with_limit = [row["ts"] for row in kept.of(gpu) if row.get("power_limit_mw") is not None]
    first = instants(kept)[0]
    assert [t - first for t in with_limit] == [k * 5_000_000_000 for k in range(6)]


@pytest.mark.parametrize(("by", "words"), [(-3_600_000_000_000, "back by 3600.000 s"), (90_000_000, "forward by 0.09")])
def test_a_clock_that_is_set_is_told_and_nothing_is_lost(by: int, words: str) -> None:
    kept = turned(Turned(plans=[(11_000_000_000, "set", by)]))
    assert len(instants(kept)) == 300
    assert words in kept.detail("clock_step")
    assert [round(e["duration_ns"], -7) for e in kept.events if e["kind"] == "clock_step"] == [round(by, -7)]
    assert "missed_ticks" not in kept.kinds()


def test_a_clock_that_is_slewed_is_not_told() -> None:
    slew = [(1_000_000_000 + k * 100_000_000, "set", 50_000) for k in range(300)]  # 500 ppm, the most that NTP does
    assert not set(turned(Turned(plans=slew)).kinds()) & {"clock_step", "suspended"}


def test_a_machine_that_slept_is_told() -> None:
    kept = turned(Turned(plans=[(11_000_000_000, "suspend", 7_200_000_000_000)]))
    assert "7200.0 s" in kept.detail("suspended")
    assert "clock_step" not in kept.kinds()


def test_missed_ticks_are_one_event_with_their_number() -> None:
    holds = [(11_000_000_000 + k * 1_000_000_000, "hold", 450_000_000) for k in range(5)]
    kept = turned(Turned(plans=holds))
    missed = 300 - len(instants(kept))
    assert missed == 20
    assert f"{missed} ticks missed within" in kept.detail("missed_ticks")
    assert [e["n"] for e in kept.events if e["kind"] == "missed_ticks"] == [missed]


# The recorder


def test_a_store_that_hangs_does_not_keep_it_from_ending(nvml: NvmlLibrary, caplog: pytest.LogCaptureFixture) -> None:
    released = threading.Event()

    class Hanging(Kept):
        def append(self, ticks: Ticks) -> None:
            if len(self.batches) == 5:
                released.wait(20)
                raise StoreError("it came back too late")
            super().append(ticks)

    nvml.write("gpus 2")
    kept = Hanging()
    sampler = sampler_of(Nvml(), kept, slow_s=10.0, hung_s=0.2)
    sampler.run(ended=lambda: "the store has not answered" in caplog.text)
    assert sampler.waiting_for_store
    assert sampler.counts.rows == 10
    released.set()


def test_a_number_that_no_column_of_identities_can_hold_is_null() -> None:
    said = {"memory_total": 2**64 - 1, "power_limit_mw": 2**32 - 1, "slot": 3}  # all bits set: the driver knows none
    (row,) = identity_table([Device("a", said)], "c", "n", 1).select([*said, "gpu"]).to_pylist()
    assert (row["memory_total"], row["power_limit_mw"], row["slot"], row["gpu"]) == (None, None, 3, "a")


# -- identities --------------------------------------------------------------------------------------------------------
# Who GPUs are, as collectors store it.


def test_a_card_that_comes_back_is_where_it_was_before(store: Store) -> None:
    """Two cards change places for a test, and then go back; a driver is installed, and then removed."""

    def told(node: str, gpu: str, at: int, driver: str = "550") -> int:
        return identify(store, [Device(gpu, {"uuid": gpu, "slot": 0, "driver": driver})], "c", node, 1000 * at)

    def now() -> dict[str, tuple[str, str]]:
        rows = store.sql("select gpu, name, driver from gpus_now").to_pylist()
        return {row["gpu"]: (row["name"], row["driver"]) for row in rows}

    usual = {"GPU-a": ("n1/0", "550"), "GPU-b": ("n2/0", "550")}
    assert told("n1", "GPU-a", 1) + told("n2", "GPU-b", 2) == 2
    assert told("n1", "GPU-a", 3) + told("n2", "GPU-b", 4) == 0  # both are known
    assert told("n2", "GPU-a", 5) + told("n1", "GPU-b", 6) == 2
    assert now() == {"GPU-a": ("n2/0", "550"), "GPU-b": ("n1/0", "550")}
    assert told("n1", "GPU-a", 7) + told("n2", "GPU-b", 8) == 2
    assert now() == usual
    assert told("n1", "GPU-a", 9) + told("n2", "GPU-b", 10) == 0
    assert told("n1", "GPU-a", 11, driver="560") + told("n1", "GPU-a", 12) == 2
    assert now() == usual
    assert told("n1", "GPU-a", 13) == 0
