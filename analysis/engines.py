"""Where the parts of an answer are made: in threads of this process, or in workers of Dask on other machines.

A part is a frozen dataclass of paths and bounds: half a million to two million readings of some GPUs and some time.
The function that makes its answer stands in a module, and takes one part. It opens the store itself (`opened`), lists
the files itself, so that a compaction meanwhile does no harm, returns something small, and writes nothing. So it can be
done again, elsewhere. The answers of all parts are put together in the order of the parts: each engine gives the same
numbers.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from ..errors import StoreError

if TYPE_CHECKING:
    from ..store import Store

P = TypeVar("P")
R = TypeVar("R")

_THREADS = 4
_AHEAD = 2  # parts under way beyond one for each worker, so that none waits for its next part


@dataclass(frozen=True)
class PartFailure:
    """A part that could not be done: its name for people, and the reason, one sentence."""

    name: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """Of how many parts an answer was to be made, and those that are not in it."""

    parts: int = 0
    failures: tuple[PartFailure, ...] = ()

    @property
    def done(self) -> int:
        """How many parts are in the answer."""
        return self.parts - len(self.failures)

    def __add__(self, other: Coverage) -> Coverage:
        return Coverage(self.parts + other.parts, self.failures + other.failures)


class Engine(ABC):
    """Where the parts of an answer are made. `workers`: how many parts are made at a time."""

    workers: int

    @abstractmethod
    def map(
        self,
        function: Callable[[P], R],
        parts: Sequence[P],
        *,
        name: Callable[[P], str],
        progress: Callable[[str], None] | None = None,
    ) -> Iterator[R | PartFailure]:
        """The results in the order of the parts, each as soon as it and those before it are there.

        `name` says for people which part it is; `progress` is called with how many are done. At most a few parts more
        than there are workers are under way, so that memory does not grow. A part that raises StoreError, OSError,
        ArrowException or MemoryError, or that workers died of, gives a PartFailure. InputError and errors of the
        program are raised. Raises EngineError where the workers are lost.
        """

    def require(self, store: Store) -> None:  # noqa: B027 (threads of this process need nothing)
        """See that every worker sees this store, and has this whorl and Python. Raises EngineError."""

    def close(self) -> None:  # noqa: B027
        """End what is under way; workers that were started for this engine end."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Here(Engine):
    """Threads of this process; one part at a time is made by the thread that calls."""

    def __init__(self, workers: int | None = None) -> None:
        """`workers`: threads; the CPUs of this process where it is None, at most 4."""
        self.workers = workers or min(len(os.sched_getaffinity(0)), _THREADS)

    def require(self, store: Store) -> None:
        """Parts use this store where they would open it again: what it knows of its files is found once."""
        _lent[str(store.root.absolute())] = store

    def map(
        self,
        function: Callable[[P], R],
        parts: Sequence[P],
        *,
        name: Callable[[P], str],
        progress: Callable[[str], None] | None = None,
    ) -> Iterator[R | PartFailure]:
        if min(self.workers, len(parts)) <= 1:
            for done, part in enumerate(parts, start=1):
                yield _named(attempt(function, part), name(part))
                _tell(progress, done, parts)
            return
        pool = ThreadPoolExecutor(min(self.workers, len(parts)), "whorl-part")
        try:
            yield from _in_order(
                parts, self.workers + _AHEAD, lambda part: pool.submit(attempt, function, part).result, name, progress
            )
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


HERE = Here()
"""The engine of answers for which no other is named."""


@dataclass(frozen=True)
class _Fault:
    """Why a part failed, on its way back from where it was made."""

    reason: str


def attempt(function: Callable[[P], R], part: P) -> R | _Fault:
    """The result of a part, or what was wrong with its files, the disk or the memory."""
    import pyarrow as pa

    try:
        return function(part)
    except MemoryError:
        return _Fault("the memory did not suffice")
    except (StoreError, OSError, pa.ArrowException) as error:
        return _Fault(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _named(result: R | _Fault, name: str) -> R | PartFailure:
    return PartFailure(name, result.reason) if isinstance(result, _Fault) else result


def _tell(progress: Callable[[str], None] | None, done: int, parts: Sequence[object]) -> None:
    if progress is not None:
        progress(f"{done} of {len(parts)} parts")


def _in_order(
    parts: Sequence[P],
    at_once: int,
    begin: Callable[[P], Callable[[], R | _Fault]],
    name: Callable[[P], str],
    progress: Callable[[str], None] | None,
) -> Iterator[R | PartFailure]:
    """The results in the order of the parts, with so many under way at once; `begin` gives what waits for a part."""
    under_way: deque[Callable[[], R | _Fault]] = deque()
    ahead = iter(parts)
    for done, part in enumerate(parts, start=1):
        under_way.extend(map(begin, islice(ahead, at_once - len(under_way))))
        yield _named(under_way.popleft()(), name(part))
        _tell(progress, done, parts)


_lent: weakref.WeakValueDictionary[str, Store] = weakref.WeakValueDictionary()
_of_thread = threading.local()


def opened(root: str) -> Store:
    """The store at this absolute path: the one that asks (`Here.require`), else opened once by each thread."""
    from ..store import Store

    if (lent := _lent.get(root)) is not None:
        return lent
    if getattr(_of_thread, "root", None) != root:
        _of_thread.root, _of_thread.store = root, Store.open(root)
    store: Store = _of_thread.store
    return store
