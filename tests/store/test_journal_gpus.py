"""How many GPUs one file of a journal can name."""

import pytest

from whorl.errors import StoreError
from whorl.store import Store


def test_more_gpus_than_a_file_can_number_take_two_files_or_are_refused(store: Store) -> None:
    names = [f"g{number}" for number in range(65_537)]
    with store.journal("n", background=False, offline=True) as journal:
        with pytest.raises(StoreError, match="65536 GPUs at once"):
            journal.append(1, names, {"cluster": "c"})
        for some in (names[:-1], names[-1:]):
            journal.append(1, some, {"cluster": "c"})
        assert store.sql("select count(distinct gpu) n from telemetry").to_pylist() == [{"n": len(names)}]
