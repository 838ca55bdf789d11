"""The CuPy of the tests in the place of the real one: in a test, or in a process that a test starts."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Sequence

from whorl.kernels import cupy_device, cupy_library, cupy_loaded, cupy_waiting
from whorl.tests.kernels.fake_cupy import FakeCupy, LibraryInStream, any_source

Put = Callable[[object, str, object], None]
"""Sets an attribute of a module: `setattr`, or that of a monkeypatch."""


def install(cupy: FakeCupy, uuids: Sequence[str], put: Put) -> LibraryInStream:
    """Make `cupy_devices` find the GPUs of these UUIDs, in order; gives their cuBLAS."""
    library = LibraryInStream(cupy)
    runtime = cupy.cuda.runtime
    put(cupy_library, "source", any_source)
    put(cupy_device, "library", lambda name, major: library)
    put(cupy_device, "cuda_uuid", lambda ordinal: uuid.UUID(uuids[ordinal].removeprefix("GPU-")))
    put(cupy_device, "open_context", runtime.opened.add)
    put(cupy_waiting, "event_calls", lambda _: (runtime.eventQuery, runtime.eventRecord))
    put(cupy_loaded, "GRACE_S", 0.1)
    return library


def take_place(cupy: FakeCupy, uuids: Sequence[str]) -> None:
    """Be CuPy in this process, for good."""
    sys.modules["cupy"] = cupy  # type: ignore[assignment]
    install(cupy, uuids, setattr)
