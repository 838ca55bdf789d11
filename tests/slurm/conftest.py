"""A real Slurm, started once for all tests that need one: see tests/slurm/daemons.py."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from whorl.tests.slurm import accounted
from whorl.tests.slurm.accounted import Accounted
from whorl.tests.slurm.daemons import USERS, Slurm, ensure_users, why_not

Cluster = TypeVar("Cluster", bound=Slurm)


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[Slurm]:
    """The daemons. Skips, with the reason, where they cannot be started."""
    with started(Slurm, why_not() or ensure_users()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def accounted_slurm() -> Iterator[Accounted]:
    """Daemons of another cluster, which keeps accounts. Skips, with the reason, where they cannot be started."""
    with started(Accounted, why_not() or ensure_users() or accounted.why_not()) as cluster:
        yield cluster


@contextlib.contextmanager
def started(kind: Callable[[Path], Cluster], reason: str | None) -> Iterator[Cluster]:
    if reason:
        pytest.skip(f"no Slurm here: {reason}")
    # pytest's own folders are closed to the ordinary users of the tests.
    folder = Path(tempfile.mkdtemp(prefix="whorl-slurm-"))
    folder.chmod(0o755)
    cluster: Cluster | None = None
    try:
        cluster = kind(folder)
        try:
            cluster.start()
        except (AssertionError, OSError, subprocess.SubprocessError, pytest.fail.Exception) as error:
            pytest.skip(f"no Slurm here: its daemons do not start: {str(error).partition(chr(10))[0]}")
        for user in USERS:
            done = cluster.program("--version", user=user)
            if done.returncode:
                pytest.skip(f"no Slurm here: the user {user} cannot run whorl: {done.stderr.strip()[-300:]}")
        yield cluster
    finally:
        if cluster is not None:
            cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(slurm_session: Slurm) -> Iterator[Slurm]:
    """The daemons with no jobs and untouched nodes."""
    slurm_session.reset()
    yield slurm_session
    slurm_session.cancel_all()
