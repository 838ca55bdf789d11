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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import EngineError, StoreError

if TYPE_CHECKING:
    from distributed import Client, Future

    from ..store import Store

P = TypeVar("P")
R = TypeVar("R")

_THREADS = 4
_AHEAD = 2  # parts under way beyond one for each worker, so that none waits for its next part
_WAIT_S = 180.0  # a worker that was killed is there again after seconds, on a busy machine half a minute
_LOOKS, _PAUSED_LOOKS = 36, 6  # at the workers while we wait so long, where a part takes long
_HOSTS = 5  # that a sentence names


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
                yield _named(attempt(function, part), name, part)
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


class DaskEngine(Engine):
    """Workers of Dask, wherever they run. It needs the package `distributed`."""

    def __init__(
        self,
        client: Client,
        workers: int | None = None,
        *,
        or_here: Callable[[str], None] | None = None,
        closing: Callable[[], None] = lambda: None,
        wait_s: float = _WAIT_S,
    ) -> None:
        """`client`: of a scheduler of Dask. `workers`: how many there will be; as many threads as they have if None.

        `or_here`: where the workers are lost, it is called with the reason, and this process makes the other parts.
        `closing` ends what was started for this engine. `wait_s`: after so long without a worker that takes parts they
        count as lost; after a sixth of it, a part that waits at a paused worker is begun at another one.
        """
        self._client, self._or_here, self._closing = client, or_here, closing
        self._wait_s = wait_s
        self._is_lost = False
        self.workers = workers or max(1, sum(self._asked(client.nthreads).values()))

    def map(
        self,
        function: Callable[[P], R],
        parts: Sequence[P],
        *,
        name: Callable[[P], str],
        progress: Callable[[str], None] | None = None,
    ) -> Iterator[R | PartFailure]:
        done = 0
        if not self._is_lost:
            try:
                for result in _in_order(
                    parts, self.workers + _AHEAD, lambda part: self._begun(function, part), name, progress
                ):
                    yield result
                    done += 1
            except EngineError as error:
                self._without_workers(error)
            else:
                return
        yield from HERE.map(function, parts[done:], name=name, progress=progress)

    def require(self, store: Store) -> None:
        try:
            self._require(store)
        except EngineError as error:
            self._without_workers(error)

    def close(self) -> None:
        self._closing()

    def _begun(self, function: Callable[[P], R], part: P) -> Callable[[], R | PartFailure]:
        from distributed.protocol.pickle import dumps  # also of functions that stand in no module of the workers

        packed = dumps((function, part))  # of bytes, the scheduler imports nothing of what parts need

        def begin() -> Future[R | PartFailure]:
            return self._client.submit(attempt_packed, packed, pure=False)

        future = begin()
        return lambda: self._result(future, begin)

    def _result(self, future: Future[R | PartFailure], begin: Callable[[], Future[R | PartFailure]]) -> R | PartFailure:
        """The result of a part. A worker that dies while it makes it is one of Dask's `allowed-failures`: another one
        makes it again. Dask counts parts that only waited at the worker, too: so after the last of them the part is
        begun once more. Dask pauses a worker whose memory is nearly full, it may stay so, and a part may wait there
        while other workers are idle: such a part is begun again. Raises EngineError where there is no scheduler, or no
        worker that takes parts for a while."""
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        was_killed, alone, at_paused = False, 0, 0
        while True:
            try:
                return future.result(timeout=self._wait_s / _LOOKS)
            except TimeoutError:
                running, place = self._workers_of(future)
                alone = 0 if running else alone + 1
                at_paused = at_paused + 1 if running and place is not None and place not in running else 0
                if alone >= _LOOKS:
                    raise EngineError(
                        f"no worker of Dask has taken a part for {self._wait_s:g} s: none is there, or their memory is "
                        "full; start some with more memory, and ask again"
                    ) from None
                if at_paused >= _PAUSED_LOOKS:
                    future.cancel()
                    future, at_paused = begin(), 0
            except KilledWorker as error:
                if was_killed:
                    return PartFailure(
                        "",
                        f"{error.allowed_failures + 1} workers ended while they made it: perhaps their memory does not "
                        "suffice, or somebody stopped them",
                    )
                future, was_killed = begin(), True
            except (CancelledError, OSError) as error:
                raise _lost(error) from error

    def _workers_of(self, future: Future[Any]) -> tuple[set[str], str | None]:
        """The workers that take parts, and the one, paused or not, that has this part (None: none has)."""
        workers = self._asked(self._client.scheduler_info, n_workers=-1)["workers"]
        running = {address for address, worker in workers.items() if worker["status"] == "running"}
        parts = self._asked(self._client.processing)
        return running, next((address for address, keys in parts.items() if future.key in keys), None)

    def _asked(self, ask: Callable[..., Any], *arguments: object, **options: object) -> Any:
        """What the scheduler or all workers answer. Raises EngineError where the scheduler does not."""
        try:
            return ask(*arguments, **options)
        except OSError as error:
            raise _lost(error) from error

    def _require(self, store: Store) -> None:
        import platform
        import socket

        from .. import __version__
        from ..store.folder import made_at

        python, root = platform.python_version(), store.root.absolute()
        versions = self._asked(self._client.get_versions, packages=["whorl"])["workers"]
        hosts = self._asked(self._client.run, socket.gethostname)  # also of workers that came meanwhile
        pythons = {worker: about["host"]["python"].partition(".final")[0] for worker, about in versions.items()}
        for package, here, of_worker in (
            ("whorl", __version__, {worker: about["packages"].get("whorl") for worker, about in versions.items()}),
            ("Python", python, pythons),
        ):
            others = {worker: version for worker, version in of_worker.items() if not _alike(package, version, here)}
            if others:
                versions_there = ", ".join(sorted({version or "missing" for version in others.values()}))
                raise EngineError(
                    f"the {package} of workers on {_named_hosts(hosts, others)} is {versions_there}, here {here}: "
                    f"give all of them the same {package}"
                )
        moments = self._asked(self._client.run, made_at, root)
        blind = [worker for worker, moment in moments.items() if moment != made_at(root)]
        if blind:
            raise EngineError(
                f"workers on {_named_hosts(hosts, blind)} do not see the store {root}: "
                "it must be in a file system that all of them share, at this path"
            )

    def _without_workers(self, error: EngineError) -> None:
        if self._or_here is None:
            raise error
        self._is_lost = True
        self._or_here(str(error))


def _lost(error: BaseException) -> EngineError:
    return EngineError(f"the scheduler of Dask does not answer any more ({type(error).__name__}): see whether it runs")


def _alike(package: str, version: str | None, here: str) -> bool:
    """Whether versions are the same; of Python the first two numbers count."""
    numbers = 2 if package == "Python" else None
    return version is not None and version.split(".")[:numbers] == here.split(".")[:numbers]


def _named_hosts(hosts: dict[str, str], workers: Iterable[str]) -> str:
    """The hosts of workers for people: some of them where they are many."""
    names = sorted({hosts.get(worker, worker) for worker in workers})
    return ", ".join(names[:_HOSTS]) + (f" and {len(names) - _HOSTS} more" if len(names) > _HOSTS else "")


def attempt(function: Callable[[P], R], part: P) -> R | PartFailure:
    """The result of a part, or what was wrong with its files, the disk or the memory, without the name of the part."""
    import pyarrow as pa

    try:
        return function(part)
    except MemoryError:
        return PartFailure("", "the memory did not suffice")
    except FileNotFoundError as error:
        return PartFailure("", f"{error.filename or error} is not there")
    except (StoreError, OSError, pa.ArrowException) as error:
        return PartFailure("", str(error).splitlines()[0] if str(error) else type(error).__name__)


def attempt_packed(packed: bytes) -> Any:
    """`attempt` of a pickled function and part."""
    from distributed.protocol.pickle import loads

    return attempt(*loads(packed))


def _named(result: R | PartFailure, name: Callable[[P], str], part: P) -> R | PartFailure:
    return replace(result, name=name(part)) if isinstance(result, PartFailure) else result


def _tell(progress: Callable[[str], None] | None, done: int, parts: Sequence[object]) -> None:
    if progress is not None:
        progress(f"{done} of {len(parts)} parts")


def _in_order(
    parts: Sequence[P],
    at_once: int,
    begin: Callable[[P], Callable[[], R | PartFailure]],
    name: Callable[[P], str],
    progress: Callable[[str], None] | None,
) -> Iterator[R | PartFailure]:
    """The results in the order of the parts, with so many under way at once; `begin` gives what waits for a part."""
    under_way: deque[Callable[[], R | PartFailure]] = deque()
    ahead = iter(parts)
    for done, part in enumerate(parts, start=1):
        under_way.extend(map(begin, islice(ahead, at_once - len(under_way))))
        yield _named(under_way.popleft()(), name, part)
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
