"""The section of a report about energy, as the old report takes it."""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.energy.answers import EnergySummary
from . import document
from .documents.books import summary_section
from .page import Drawing, Facts, Section
from .table import Table


def energy_section(summary: EnergySummary) -> Section:
    """The section."""
    section = summary_section(summary)
    return Section(section.title, section.lead, list(_parts(section.parts)))


def _parts(parts: Iterable[document.Part]) -> Iterable[Table | Drawing | Facts]:
    for part in parts:
        if isinstance(part, document.Section):
            yield Table((), (), title=part.title)
            yield from _parts(part.parts)
        elif isinstance(part, document.Table):
            heads = part.heads
            right = [place for place, head in enumerate(heads) if head.right]
            wide = [place for place, head in enumerate(heads) if head.kind == "sentence"]
            yield Table([head.head for head in heads], part.texts(), right, part.title, part.below, wide)
        elif isinstance(part, document.Chart):
            yield Drawing(part.title, part.caption, part.figures)
        elif isinstance(part, document.Tiles):
            yield Facts(part.figures)
        elif isinstance(part, str):
            yield Table((), (), says=part)
