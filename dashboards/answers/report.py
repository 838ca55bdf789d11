"""A campaign with all that was found in it, to draw and to write as a page: `whorl.look` and `whorl.report`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ..document import Document
from .reply import Reply, RowList, folder, opened

if TYPE_CHECKING:
    from ...analysis.one_gpu.explain import OneGpu
    from ...store import Store
    from ..report import Looked


def look(
    store: Store | str | Path,
    campaign: str | None = None,
    cluster: str | None = None,
    *,
    progress: Callable[[str], None] | None = None,
) -> Reply[Looked]:
    """Compare the GPUs of a campaign, the last one where none is named; without one, all runs of the cluster.

    `overview()`, `distribution(probe)`, `machine()` and `timeline(gpu)` draw it, `write(file)` writes it as one page.
    `frame` and `json()` have the findings, as `whorl.verdicts`. Raises InputError where there are no such runs.
    """
    from ..report import look

    return _looked(look(opened(store), campaign, cluster, progress=progress), store)


def report(
    store: Store | str | Path,
    out: str | Path = "report.html",
    campaign: str | None = None,
    *,
    cluster: str | None = None,
    gpu: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reply[Looked] | Reply[OneGpu]:
    """Write the page of a store to the file `out`, as `whorl report` does; with `gpu`, the evidence page of that GPU.

    `frame` and `json()` have the findings, as `whorl.verdicts`; of one GPU, what `whorl.explain` says. Raises
    InputError where there are no such runs and where the page cannot be written.
    """
    from ..html import refuse_unwritable
    from ..report import look

    if gpu is not None:
        if campaign is not None:
            raise InputError("--gpu and --campaign cannot be used together: the page of a GPU is about all its runs")
        return _report_of_gpu(opened(store), out, gpu, cluster, progress=progress)
    refuse_unwritable(Path(out), "--out")
    looked = look(opened(store), campaign, cluster, progress=progress)
    if progress is not None:
        progress("writing the report")
    looked.write(out)
    return _looked(looked, store, out)


def _looked(looked: Looked, store: Store | str | Path, page: str | Path | None = None) -> Reply[Looked]:
    from ..report import next_commands, summary_parts
    from .mappings import FINDING, verdicts

    def document(looked: Looked) -> Document:
        return Document("Report", [*summary_parts(looked), *next_commands(looked, folder(store), page)])

    return Reply(looked, lambda looked: verdicts([looked.judged]), document, rows=RowList(of=FINDING))


def _report_of_gpu(
    store: Store, out: str | Path, name: str, cluster: str | None, *, progress: Callable[[str], None] | None
) -> Reply[OneGpu]:
    from ...analysis.one_gpu.explain import whole
    from ..documents.gpu import document, what_was_found
    from ..html import page, refuse_unwritable, write_page
    from .mappings import explain

    refuse_unwritable(Path(out), "--out")
    gpu = whole(store, name, cluster, progress=progress)
    root = folder(store)
    full = document(gpu, root)
    write_page(Path(out), page(full))
    section = what_was_found(gpu.row, gpu.runs, gpu.found, gpu.events, store=root)
    written = f"The page: {out} (open it in a browser; it needs no network)."
    short = Document(full.title, [f"{full.title}.", *section.parts, written])
    return Reply(gpu, explain, lambda _: short, rows=RowList("places"))
