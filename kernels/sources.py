"""The CUDA C sources of this folder, as one text each: local includes stand in place.

A compiler that gets one whole text needs no search path, and a cache keyed by that text sees a change in a header
(CuPy's does not look into included files).
"""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
_LOCAL = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([\w.]+)"[^\n]*$', re.MULTILINE)


def source(name: str, folder: Path = FOLDER) -> str:
    """The text of a source, as 'fma.cu', with each header of the folder put in where it is first included.

    `folder` is searched first, then this one. FileNotFoundError where a file is in neither.
    """
    included: set[str] = set()

    def text(file: str) -> str:
        place = folder / file
        return _LOCAL.sub(put, (place if place.exists() else FOLDER / file).read_text())

    def put(match: re.Match[str]) -> str:
        header = match[1]
        if header in included:
            return ""
        included.add(header)
        return text(header)

    return text(name)
