"""Files of measurements, from any tool, into a store: the function of `whorl import`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...errors import InputError, WhorlError
from ..document import Document
from ..documents.stores import import_parts, merge_parts
from .reply import Reply, RowList

if TYPE_CHECKING:
    from ...store import Store
    from ...store.importing import Report
    from ...store.merging import Merged


class ImportOptions(TypedDict, total=False):
    """What is known of the files; each is None or empty where it is left out, as the files then say it."""

    cluster: str
    """Name of the files' cluster; "fleet" where it is left out, of a store its own."""
    gpu: str | None
    node: str | None
    model: str | None
    workload: str | None
    map: Mapping[str, str]
    """What columns mean: {"perf": "time:ms"}."""
    unit: Mapping[str, str]
    """The units of columns: {"perf": "ms"}; of the duration under ""."""
    time_zone: str
    """Zone of time stamps that have none; "UTC" where it is left out."""
    at: str | None
    every: float | None
    header: str | None
    job: str | None
    """The training job of a timeline."""
    layout: Path | None
    """The file that says how the ranks of a timeline are laid out."""
    ranks: Path | None
    """The file that says which rank of a timeline has which GPU."""
    progress: Callable[[int, int, str], None] | None
    """Called with how many files are done, of how many, and what goes on."""
    done: Callable[[Report | Merged | WhorlError], None] | None
    """Called when a file is done: with its report, or why nothing of it was stored."""


@dataclass(frozen=True)
class Imports:
    """What an import of files did."""

    reports: Sequence[Report]
    failed: Sequence[tuple[Path, WhorlError]]
    """The files of which nothing was stored, and why."""
    stores: Sequence[Merged] = ()
    """What was taken in of stores, and of files of their tables."""

    def mapping(self) -> dict[str, Any]:
        """The answer as `whorl.import/1`."""
        failed = [{"file": str(path), "error": str(error)} for path, error in self.failed]
        return {
            "schema": "whorl.import/1",
            "files": [report.as_dict() for report in self.reports],
            "stores": [asdict(merged) for merged in self.stores],
            "failed": failed,
        }

    def document(self) -> Document:
        """What became of each file that was imported, for people."""
        outcomes: list[Report | Merged] = [*self.reports, *self.stores]
        return Document("Import", [sentence for outcome in outcomes for sentence in outcome_parts(outcome)])


def outcome_parts(outcome: Report | Merged) -> Iterable[str]:
    """What became of one file or store, for people."""
    from ...store.merging import Merged

    return merge_parts(outcome) if isinstance(outcome, Merged) else import_parts(outcome)


def import_files(
    files: str | Path | Sequence[str | Path], into: Store | str | Path, **options: Unpack[ImportOptions]
) -> Reply[Imports]:
    """Import files of measurements into a store, as `whorl import` does; a new store is made if needed.

    `files` is one or several. `frame` has a row for each file: how many of its rows were kept, duplicates or refused. A
    file is stored whole or not at all; the others go on, and `failed` has those that were not. Raises the error of the
    first file where no file could be imported.
    """
    paths = [Path(files)] if isinstance(files, str | Path) else [Path(path) for path in files]
    imports = imported(paths, into, **options)
    if imports.failed and not (imports.reports or imports.stores):
        raise imports.failed[0][1]
    notes = [str(error) for _, error in imports.failed]
    return Reply(imports, Imports.mapping, Imports.document, rows=RowList("files"), notes=notes)


def imported(files: Sequence[Path], into: Store | str | Path, **options: Unpack[ImportOptions]) -> Imports:
    """Import the files, one after another; those that cannot be used are `failed`."""
    from ...store import Store
    from ...store.importing import Options, import_file
    from ...store.merging import is_source, merge

    renamed = {"map": "columns", "unit": "units"}
    progress, done = options.pop("progress", None), options.pop("done", None) or (lambda _: None)
    chosen: dict[str, Any] = {renamed.get(name, name): value for name, value in options.items()}
    about = Options(**chosen)
    place = into if isinstance(into, Store) else Store.find(into) or Path(into)
    only = [f"--{name}" for name, value in options.items() if value and name not in ("cluster", "time_zone")]
    reports: list[Report] = []
    stores: list[Merged] = []
    failed: list[tuple[Path, WhorlError]] = []
    for position, path in enumerate(files):
        if progress is not None:
            progress(position, len(files), f"importing {path.name}")
        try:
            outcome: Report | Merged
            if is_source(path):
                if only:
                    raise InputError(f"{path} is of a store, which needs no {only[0]}: leave it out")
                outcome = merge(place, path, cluster=options.get("cluster"))
                stores.append(outcome)
            else:
                outcome = import_file(place, path, about)
                reports.append(outcome)
            place = place if isinstance(place, Store) else Store.open(place)
            done(outcome)
        except WhorlError as error:
            failed.append((path, error))
            done(error)
    return Imports(reports, failed, stores)
