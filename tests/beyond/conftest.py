"""Two workers of Dask, processes of their own, started once for all tests that need some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from distributed import LocalCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """A scheduler in this process, and two workers with a thread and 1 GiB each."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="1GiB", dashboard_address=":0", silence_logs=50
    ) as started:
        yield started


@pytest.fixture(scope="session")
def address(cluster: LocalCluster) -> str:
    """What `--on` takes."""
    return placed(cluster)


def placed(cluster: LocalCluster) -> str:
    """The place of a cluster, as `--on` takes it."""
    return cluster.scheduler_address.replace("tcp://", "dask://")
