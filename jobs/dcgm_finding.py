"""What DCGM there is, for `whorl doctor`: bindings, library, engine, and which profiling fields may be read.

It is asked in a process of its own: an engine may hang, and a library that does not fit may crash.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .finding import Finding

if TYPE_CHECKING:
    from ..collectors.dcgm.connection import EngineConnection

_DCGM, _PROFILING = "collect --backend dcgm", "profiling fields through DCGM"
_ASK = "import json, sys; from whorl.jobs.dcgm_finding import ask_dcgm; ask_dcgm(*json.loads(sys.argv[1]))"
_PATIENCE_S = 60.0
_EVERY_US = 10_000_000  # so seldom that the engine does nothing for us


def dcgm_findings(host: str | None = None, socket: str | None = None) -> list[Finding]:
    """The bindings, the library and the engine, and the profiling fields."""
    from ..collectors.dcgm.bindings import find_bindings

    try:
        folder = find_bindings().folder
    except InputError as error:
        return [Finding("DCGM bindings", False, str(error), _DCGM)]
    bindings = Finding("DCGM bindings", True, f"in {folder}", _DCGM)
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            [sys.executable, "-c", _ASK, json.dumps([host, socket])],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"the engine has not answered for {_PATIENCE_S:.0f} s: restart it (systemctl restart nvidia-dcgm)"
        return [bindings, Finding("DCGM", False, detail, _DCGM)]
    try:
        return [bindings, *(Finding(**finding) for finding in json.loads(done.stdout.splitlines()[-1]))]
    except (IndexError, ValueError):
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"its process ended with status {done.returncode}"
        return [bindings, Finding("DCGM", False, f"DCGM's library cannot be used: {why}", _DCGM)]


def ask_dcgm(host: str | None, socket: str | None) -> None:
    """Print what there is as JSON: the body of the other process."""
    sys.stdout.write(json.dumps([vars(finding) for finding in _ask(host, socket)]) + "\n")


def _ask(host: str | None, socket: str | None) -> list[Finding]:
    from ..collectors.dcgm.bindings import find_bindings
    from ..collectors.dcgm.connection import connect

    bindings = find_bindings()
    try:
        bindings.load()
        connection = connect(bindings, host, socket, interval_us=_EVERY_US, slow_us=_EVERY_US)
    except InputError as error:
        return [Finding("DCGM", False, str(error), _DCGM)]
    versions = bindings.version(), bindings.engine_version(connection.handle)
    library, engine = (version or "(version not told)" for version in versions)
    number = len(_whole(connection))
    engine_place = (
        "no engine runs on this node, so one runs within the collector"
        if connection.embedded
        else (f"engine {engine} at {connection.address}")
    )
    shows = f"{number} GPU{'s' * (number != 1)}"
    findings = [
        Finding("DCGM", True, f"library {library}, {engine_place}, {shows}", _DCGM, number=number),
        _profiling(connection),
    ]
    connection.close()
    return findings


def _whole(connection: EngineConnection) -> list[Any]:
    return [entity for entity in connection.entities if entity.parent is None]


def _profiling(connection: EngineConnection) -> Finding:
    """Which profiling fields the engine measures: it was asked for all that whorl reads."""
    from ..collectors.dcgm.connection import PROFILING, way_out

    gpus = [entity.key for entity in _whole(connection)]
    if all(connection.watched.get(gpu, set()).issuperset(PROFILING) for gpu in gpus):
        return Finding("DCGM profiling", True, f"all {len(PROFILING)} fields on all GPUs", _PROFILING)
    reasons = []
    for code, numbers, count in connection.refused_profiling():
        which = "no field" if len(numbers) == len(PROFILING) else f"not {', '.join(map(str, sorted(numbers)))}"
        reasons.append(f"{which} on {count} of {len(gpus)} GPUs: {way_out(code)}")
    partly = any(connection.watched.get(gpu, set()).intersection(PROFILING) for gpu in gpus)
    return Finding("DCGM profiling", partly, "; ".join(reasons) or "the engine gives no reason", _PROFILING)
