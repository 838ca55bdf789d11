"""Where the stores of these tests lie."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, where there is one: these tests make thousands of files durable."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder).resolve()


@pytest.fixture(autouse=True)
def views_are_copied(stores_are_copied: None) -> None:
    """For all tests here but those in which a fixture of this name says otherwise."""
