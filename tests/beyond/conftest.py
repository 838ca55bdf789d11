"""Two workers of Dask, processes of their own, started once for all tests that need some."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

CLUSTER = """
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="400MiB", dashboard_address=":0", silence_logs=50
    ) as cluster:
        print(cluster.scheduler_address, flush=True)
        input()
"""
"""A program that ends when its input does. In the process of pytest, workers that die are not started again."""


@contextmanager
def _cluster(folder: Path) -> Iterator[str]:
    program = folder / "cluster.py"
    program.write_text(CLUSTER)
    environment = os.environ | {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "POLARS_MAX_THREADS": "1",
        "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False",  # after all tests a worker may be near its limit for good
    }
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout is not None
        yield running.stdout.readline().strip().replace("tcp://", "dask://")
        running.communicate("\n", timeout=60)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What `--on` takes: a scheduler with two workers that have a thread and 400 MiB each."""
    with _cluster(tmp_path_factory.mktemp("dask")) as address:
        yield address


@pytest.fixture
def own_address(tmp_path: Path) -> Iterator[str]:
    """The same for one test whose workers die: beside other work Dask may fail to start them again."""
    with _cluster(tmp_path) as address:
        yield address
