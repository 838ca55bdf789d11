"""Who GPUs are, as collectors store it."""

from whorl.collectors.backend import Device
from whorl.collectors.recording import identify
from whorl.store import Store


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
