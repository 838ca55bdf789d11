"""Series in Prometheus' text format (version 0.0.4).

The page is written here and not by the package `prometheus-client`, which needs nearly 20 times as long for the page of
a large fleet: it makes objects and escapes labels for every sample (benchmarks/exporting.py). The tests read the page
with that package.
"""

from __future__ import annotations

from collections.abc import Iterable

from .series import Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page(series: Iterable[Series]) -> bytes:
    """The page. A series without points is left out: a value that is not known is not 0."""
    found: list[str] = []
    for one in series:
        if one.labels:
            name, text = one.prometheus, one.help.replace("\\", r"\\").replace("\n", r"\n")
            kind = "counter" if one.kind == "counter" else "gauge"  # this format has no other kind for an info
            found.append(f"# HELP {name} {text}\n# TYPE {name} {kind}\n")
            found += [f"{name}{labels.text}{value!r}\n" for labels, value in zip(one.labels, one.values, strict=True)]
    return "".join(found).encode()
