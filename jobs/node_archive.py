"""An archive of what measuring needs on a node: whorl and the packages of its extra `node`, as they are installed here.

    archive = pack("whorl-node.tar.gz")

Unpacked anywhere, `whorl-node/bin/whorl` runs with any Python of the same minor version, without an installation and
without a network. CuPy is in it where it is installed here.
"""

from __future__ import annotations

import importlib.util
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import InputError

FOLDER = "whorl-node"
_SUFFIXES = (".tar.gz", ".tgz")
_NODE = re.compile(r"""extra\s*==\s*["']node["']""")
_CUPY = ("cupy-cuda12x", "cupy-cuda13x")
_SPARED = {"numpy": {"tests", "include"}, "pyarrow": {"tests", "include"}}  # a third of their size, for developers
_SCRIPT = """#!/bin/sh
# Runs whorl with the packages in ../lib. It needs Python {version}: set WHORL_PYTHON to the path of one.
here=$(dirname "$(dirname "$(readlink -f "$0")")")
for python in "$WHORL_PYTHON" python{version} python3; do
    [ -n "$python" ] || continue
    if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != {numbers})' 2>/dev/null; then
        PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}" exec "$python" -s -m whorl "$@"
    fi
    [ "$python" != "$WHORL_PYTHON" ] || break
done
echo "whorl: this archive needs Python {version} on this node: set WHORL_PYTHON to the path of one, or make the" \\
    "archive with the Python that is here" >&2
exit 2
"""


@dataclass(frozen=True)
class NodeArchive:
    """An archive that was written."""

    path: Path
    bytes: int
    python: str  # the minor version that it needs, as "3.11"
    machine: str  # the kind of processor that it is for
    packages: tuple[str, ...]  # names and versions

    @property
    def program(self) -> str:
        """The command in the archive."""
        return f"{FOLDER}/bin/whorl"


def pack(path: str | Path) -> NodeArchive:
    """Write the archive, a gzipped tar. InputError where a package is not installed or the file cannot be written."""
    target = Path(path)
    if not target.name.endswith(_SUFFIXES):
        raise InputError(f"{target} must end in {' or '.join(_SUFFIXES)}: the archive is a gzipped tar")
    distributions = [metadata.distribution(name) for name in _node_packages()]
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    script = _SCRIPT.format(version=version, numbers=tuple(sys.version_info[:2])).encode()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=3) as archive:
            program = tarfile.TarInfo(f"{FOLDER}/bin/whorl")
            program.size, program.mode = len(script), 0o755
            archive.addfile(program, io.BytesIO(script))
            for name, file in _files(distributions):
                archive.add(file, f"{FOLDER}/lib/{name}", recursive=False, filter=_anonymous)
        temporary.replace(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    packages = (
        f"whorl {metadata.version('whorl')}",
        *(f"{package.name} {package.version}" for package in distributions),
    )
    return NodeArchive(target, target.stat().st_size, version, platform.machine(), packages)


def _node_packages() -> list[str]:
    """The distributions of the extra `node`, CuPy where it is, and what these need."""
    extra = [requirement for requirement in metadata.requires("whorl") or [] if _NODE.search(requirement)]
    queue = [_name(requirement) for requirement in extra] + [name for name in _CUPY if _is_installed(name)]
    packages: list[str] = []
    while queue:
        name = queue.pop(0)
        if name in packages:
            continue
        if not _is_installed(name):
            raise InputError(f"{name} is not installed here, and a node needs it: pip install {name}")
        packages.append(name)
        required = [_name(requirement) for requirement in metadata.requires(name) or [] if "extra" not in requirement]
        queue += filter(_is_installed, required)
    return packages


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _files(distributions: list[metadata.Distribution]) -> Iterator[tuple[str, Path]]:
    """Every file of the archive's `lib`, and its name there."""
    yield from _whorl_files()
    for package in distributions:
        for file in package.files or ():
            parts = file.parts
            if parts[0] == ".." or "__pycache__" in parts or file.suffix == ".pth":  # scripts; settings of this Python
                continue
            if _SPARED.get(parts[0], set()).isdisjoint(parts[1:-1]):
                yield from _with_cache(str(file), Path(str(package.locate_file(file))))


def _whorl_files() -> Iterator[tuple[str, Path]]:
    """The files of whorl: its packages, wherever they are, and nothing else that lies in a clone."""
    root = Path(__file__).resolve().parents[1]
    for file in sorted([*root.glob("*.py"), root / "py.typed"]):
        yield from _with_cache(f"whorl/{file.name}", file)
    for room in sorted(path.parent for path in root.glob("*/__init__.py")):
        for file in sorted(room.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                yield from _with_cache(f"whorl/{file.relative_to(root)}", file)
    about = next(file for file in metadata.distribution("whorl").files or () if file.name in ("METADATA", "PKG-INFO"))
    yield f"whorl-{metadata.version('whorl')}.dist-info/METADATA", Path(str(about.locate()))


def _with_cache(name: str, file: Path) -> Iterator[tuple[str, Path]]:
    """A file, and its compiled form where there is one: nodes may not be able to store theirs."""
    if not file.is_file():
        return
    yield name, file
    if file.suffix == ".py":
        cached = Path(importlib.util.cache_from_source(str(file)))
        if cached.is_file():
            yield str(Path(name).parent / "__pycache__" / cached.name), cached


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry of a file that belongs to nobody in particular, and that everybody can read."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry
