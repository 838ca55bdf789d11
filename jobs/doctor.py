"""What works on this machine, and why the rest does not: the rows of `whorl doctor`.

    findings(store) -> settings of whorl.toml, Python's packages, NVML and GPM, CuPy, DCGM, exporters, permissions,
                       kernel log, Slurm, and every file of the store

CuPy and DCGM are asked in processes of their own: a library that does not fit may crash, and an engine may hang.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, SchedulerError, WhorlError

if TYPE_CHECKING:
    from ..collectors.dcgm.connection import EngineConnection

EVERYTHING = "everything"
"""The purpose of packages that whorl always needs."""

_OPTIONS = "options that are left out"
_VARIABLES = {"store": "WHORL_STORE", "partition": "SBATCH_PARTITION", "account": "SBATCH_ACCOUNT"}
"""The variable of the environment that goes before a key of whorl.toml."""
_DCGM, _PROFILING = "collect --backend dcgm", "profiling fields through DCGM"
_ASK = "import json, sys; from whorl.jobs.doctor import ask_dcgm; ask_dcgm(*json.loads(sys.argv[1]))"
_DCGM_PATIENCE_S = 60.0
_EVERY_US = 10_000_000  # so seldom that the engine does nothing for us
_GPM, _PAGES = "profiling metrics without DCGM", "collect --backend prometheus"
_GPM_APART_S = 0.15  # between the two looks of GPM
_CAP_SYS_ADMIN = 21  # as capabilities(7) numbers it
_NO_CUPY = "cannot import:"
_ASK_CUPY = f"""import json
try:
    import cupy
except OSError as error:
    if error.errno is None:
        raise
    print({_NO_CUPY!r}, json.dumps([error.errno, error.strerror, error.filename], default=str))
    raise SystemExit(1)
runtime = cupy.cuda.runtime
try:
    number = runtime.getDeviceCount()
except runtime.CUDARuntimeError as error:
    number = str(error).partition(":")[0]
print(cupy.__version__, runtime.runtimeGetVersion(), runtime.driverGetVersion(), number)
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: whether it works, and what it is, or why it does not work."""

    what: str
    works: bool
    detail: str
    needed_for: str = ""
    vital: bool = False
    """Whether whorl always needs it."""
    number: int | None = None
    """How many GPUs it is about."""


def package(name: str, use: str) -> Finding:
    """Whether a package is installed."""
    vital = use == EVERYTHING
    try:
        return Finding(name, True, metadata.version(name), use, vital)
    except metadata.PackageNotFoundError:
        return Finding(name, False, f"not installed: pip install {name}", use, vital)


def findings(
    store: str | None = None, *, host: str | None = None, socket: str | None = None, urls: Sequence[str] = ()
) -> list[Finding]:
    """What this machine has, one thing after another; with a store, its files too.

    `host` and `socket` are where DCGM's engine is, and `urls` the pages of exporters that are read as well.
    """
    nvml = _nvml()
    everything = [*configuration_findings(), *_python(), nvml, *([gpm_finding()] if nvml.works else []), _cupy()]
    everything += dcgm_findings(host, socket)
    everything += [page_finding(urls)] if urls else []
    everything += [_gpu_settings(), _permission(), _kernel_log(), _slurm()]
    return everything if store is None else everything + _store(store)


def configuration_findings() -> list[Finding]:
    """Each value that whorl.toml and the environment state, and where it comes from; one row where nothing is stated.

    A file that cannot be used is a vital finding, since every verb that needs its values refuses to work.
    """
    from ..store.configuration import KEYS, configuration, configuration_files

    try:
        settings = configuration()
    except InputError as error:
        return [Finding("whorl.toml", False, str(error), _OPTIONS, vital=True)]
    rows = []
    for key in KEYS:
        variable = _VARIABLES.get(key)
        setting = settings.get(key)
        if variable is not None and os.environ.get(variable):
            hides = "" if setting is None else f"; {setting.path} says {setting.value}"
            rows.append(Finding(key, True, f"{os.environ[variable]}, from {variable}{hides}", _OPTIONS))
        elif setting is not None and isinstance(setting.value, dict):
            keys = ", ".join(setting.value) or "no keys"
            rows.append(Finding(f"[{key}]", True, f"{keys}, from {setting.path}", _OPTIONS))
        elif setting is not None:
            rows.append(Finding(key, True, f"{setting.value}, from {setting.path}", _OPTIONS))
    places = " and ".join(map(str, configuration_files()))
    return rows or [Finding("whorl.toml", True, f"no setting: neither WHORL_STORE nor {places}", _OPTIONS)]


def node_findings() -> list[Finding]:
    """What a node has of the packages that measuring needs."""
    from .. import __version__

    return [
        Finding("whorl", True, __version__, EVERYTHING, vital=True),
        Finding("python", sys.version_info >= (3, 11), sys.version.split()[0], EVERYTHING, vital=True),
        *(package(name, EVERYTHING) for name in ("click", "numpy", "pyarrow")),
    ]


def gpu_findings() -> list[Finding]:
    """What a node has of what measuring real GPUs needs; nothing of it may be missing."""
    return [replace(finding, vital=True) for finding in (_nvml(), _cupy())]


def _python() -> list[Finding]:
    uses = {"duckdb": "sql", "polars": "import, analysis", "rich": "tables for people"}
    uses |= dict.fromkeys(("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "export otlp")
    return [*node_findings(), *(package(name, use) for name, use in uses.items())]


def _nvml() -> Finding:
    """Whether the NVIDIA driver answers, and which GPUs it shows."""
    from ..collectors.collect import open_backend

    use = "measuring real GPUs"
    try:
        connection = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return Finding("NVML", False, str(error).removeprefix("NVML: "), use)
    assert connection is not None
    backend, devices = connection
    backend.close()
    whole_gpus = [device for device in devices if device.parent is None]
    models = Counter(str(device.row["model"] or "unknown") for device in whole_gpus)
    listed = ", ".join(f"{number} x {model}" for model, number in models.items())
    detail = f"driver {whole_gpus[0].row['driver'] or 'unknown'}, GPUs: {listed}"
    return Finding("NVML", True, detail, use, number=len(whole_gpus))


def _kernel_log() -> Finding:
    """Whether this user may read what the kernel says of GPUs."""
    from ..collectors.kernel_log import KernelLog, name_lost_boards

    use = "names of lost GPUs"
    log = KernelLog()
    log.close()
    if not log.readable:
        detail = "cannot be read: run as root, with CAP_SYSLOG, or in the group systemd-journal"
        return Finding("kernel log", False, detail, use)
    return Finding("kernel log", True, f"readable{name_lost_boards()}", use)


def _cupy() -> Finding:
    from ..kernels.cupy_library import INSTALL, cuda_version, fitting

    use = "GPU kernels"
    if importlib.util.find_spec("cupy") is None:
        return Finding("CuPy", False, f"not installed: {INSTALL}", use)
    # In another process: a CuPy for another CUDA version can fail without a Python error.
    try:
        process = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            [sys.executable, "-c", _ASK_CUPY], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("CuPy", False, "importing it took over 60 s", use)
    words = process.stdout.split()[-4:]
    if process.returncode or len(words) < 4:
        return Finding("CuPy", False, _no_cupy(process), use)
    version, runtime, driver, number = words
    compiled_for, supported = cuda_version(int(runtime)), cuda_version(int(driver))
    if driver == "0":
        return Finding("CuPy", False, f"{version} for CUDA {compiled_for}; it finds no NVIDIA driver", use)
    if int(driver) // 1000 < int(runtime) // 1000:
        detail = f"{version} is for CUDA {compiled_for}, but the driver supports at most {supported}: "
        detail += fitting(int(driver))
        return Finding("CuPy", False, detail, use)
    if not number.isdigit() or number == "0":
        return Finding("CuPy", False, f"{version} for CUDA {compiled_for} shows no GPU ({number})", use)
    return Finding("CuPy", True, f"{version} for CUDA {compiled_for}, driver for {supported}, {number} GPUs", use)


def _no_cupy(process: subprocess.CompletedProcess[str]) -> str:
    """Why the process that loads CuPy gave no answer."""
    from ..kernels.cupy_library import no_cache

    last_line = process.stdout.splitlines()[-1:]
    if last_line and last_line[0].startswith(_NO_CUPY):
        number, message, place = json.loads(last_line[0].removeprefix(_NO_CUPY))
        return no_cache(OSError(number, message, place)) or message
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with status {process.returncode}"


def _gpu_settings() -> Finding:
    """Restore what an earlier run left changed, and say what is changed now."""
    from ..probes.restore import pending, restore_left_over, state_folder

    subject, use = "settings of GPUs", "--lock-clock, --power-limit"
    messages = restore_left_over()
    try:
        changed_files = pending(state_folder())
        for file in changed_files:
            file.close()
    except (InputError, OSError) as error:
        return Finding(subject, False, str(error), use)
    messages += [
        f"process {file.saved.pid} has changed {file.gpu} and will restore it"
        for file in changed_files
        if file.living and file.saved is not None
    ]
    return Finding(
        subject, not any(file.left for file in changed_files), "; ".join(messages) or "nothing to restore", use
    )


def _permission() -> Finding:
    """Whether this process may change settings: the driver asks for CAP_SYS_ADMIN outside of every container."""
    subject, use = "changing settings of GPUs", "--lock-clock, --power-limit"
    try:
        status = Path("/proc/self/status").read_text()
        all_users = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return Finding(subject, os.geteuid() == 0, "not certain here; root may", use)
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    if all_users and mask >> _CAP_SYS_ADMIN & 1:
        return Finding(subject, True, "this process has CAP_SYS_ADMIN", use)
    return Finding(subject, False, "needs root with CAP_SYS_ADMIN, which this process lacks", use)


def _slurm() -> Finding:
    """Whether Slurm's controller answers: without one, as in a container, Slurm's commands are of no use."""
    from .slurm import Slurm

    use = "campaigns, advice for jobs"
    try:
        partitions = Slurm().call("scontrol", "-o", "show", "partition").splitlines()
    except SchedulerError as error:
        return Finding("Slurm", False, str(error), use)
    number = sum(line.startswith("PartitionName=") for line in partitions)
    return Finding("Slurm", True, f"its controller answers: {number} partition{'s' if number != 1 else ''}", use)


def _store(path: str) -> list[Finding]:
    from ..store import Store
    from ..store.folder import missing_folders, read_about

    try:
        missing = missing_folders(Path(path), read_about(Path(path)))  # opening makes them again
        opened_store = Store.open(path)
        damaged = opened_store.check()
    except WhorlError as error:
        return [Finding("store", False, str(error), vital=True)]
    loss = "missing, and with it its rows: restore it from a copy"
    findings = [Finding("store table", False, f"{folder}: {loss}", vital=True) for folder in missing]
    findings += [Finding("store file", False, f"{file}: {reason}", vital=True) for file, reason in damaged.items()]
    try:
        rows: list[Any] = opened_store.sql(
            "select (select count(*) from runs) runs, (select count(*) from telemetry) telemetry, "
            '(select count(distinct gpu) from gpus) as "GPU identities", '
            "(select count(distinct import_id) from imports) imports"
        ).to_pylist()
    except WhorlError as error:
        return [Finding("store", False, str(error), vital=True), *findings]
    if (
        not rows[0]["runs"]
        and opened_store.root / "runs" not in missing
        and opened_store.scan("results").head(1).collect().height
    ):
        loss = "no runs, though results has results of some: restore the files of this folder from a copy"
        findings.append(Finding("store table", False, f"{opened_store.root / 'runs'}: {loss}", vital=True))
    counts = ", ".join(f"{number:,} {name}" for name, number in rows[0].items())
    free = shutil.disk_usage(path).free / 2**30
    writable = "writable" if opened_store.writable() else "this user may only read it"
    return [Finding("store", True, f"{path}: {counts}; {free:,.1f} GiB free; {writable}"), *findings]


def dcgm_findings(host: str | None = None, socket: str | None = None) -> list[Finding]:
    """The bindings, the library and the engine, and the profiling fields."""
    from ..collectors.dcgm.bindings import find_bindings

    try:
        folder = find_bindings().folder
    except InputError as error:
        return [Finding("DCGM bindings", False, str(error), _DCGM)]
    bindings = Finding("DCGM bindings", True, f"in {folder}", _DCGM)
    try:
        process = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            [sys.executable, "-c", _ASK, json.dumps([host, socket])],
            capture_output=True,
            text=True,
            timeout=_DCGM_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        detail = f"the engine has not answered for {_DCGM_PATIENCE_S:.0f} s: restart it (systemctl restart nvidia-dcgm)"
        return [bindings, Finding("DCGM", False, detail, _DCGM)]
    try:
        return [bindings, *(Finding(**finding) for finding in json.loads(process.stdout.splitlines()[-1]))]
    except (IndexError, ValueError):
        lines = process.stderr.strip().splitlines()
        why = lines[-1] if lines else f"its process ended with status {process.returncode}"
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


def gpm_finding() -> Finding:
    """Whether the driver gives profiling metrics by itself (GPM)."""
    from ..collectors.backend import Reading, Status
    from ..collectors.collect import open_backend
    from ..store.metrics import METRICS, Gpm

    try:
        connection = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return Finding("GPM", False, str(error).removeprefix("NVML: "), _GPM)
    assert connection is not None
    backend, devices = connection
    whole = {device.gpu: device.parent or device.gpu for device in devices}  # the GPU of each device
    rows = [row for row, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm)]
    try:
        list(backend.read(list(whole), slow=True))
        time.sleep(_GPM_APART_S)
        readings = [reading for reading in backend.read(list(whole), slow=True) if isinstance(reading, Reading)]
    except InputError as error:
        return Finding("GPM", False, str(error).removeprefix("NVML: "), _GPM)
    finally:
        backend.close()
    numbers = {reading.gpu: sum(reading.statuses[row] == Status.OK for row in rows) for reading in readings}
    able = len({whole[gpu] for gpu, number in numbers.items() if number})
    if not able:
        detail = "no GPU of this node has it with this driver: it needs Hopper or newer"
        return Finding("GPM", False, detail, _GPM)
    return Finding(
        "GPM", True, f"{max(numbers.values())} metrics on {able} of {len(set(whole.values()))} GPUs", _GPM, number=able
    )


def page_finding(urls: Sequence[str]) -> Finding:
    """Whether the pages of exporters can be read, and the GPUs that they show."""
    from ..collectors.exporter.exporter import ExporterPages
    from ..store.events import Event
    from ..store.vocabulary import EventKind

    exporter = ExporterPages(url=urls)
    try:
        devices = exporter.devices()
        events = [reading for reading in exporter.read([], slow=True) if isinstance(reading, Event)]
    except InputError as error:
        return Finding("exporters", False, str(error), _PAGES)
    finally:
        exporter.close()
    number = sum(device.parent is None for device in devices)
    summary = f"{number} GPU{'s' * (number != 1)} on {len(urls)} page{'s' * (len(urls) != 1)}"
    wrong = any(event.kind == EventKind.SOURCE_GONE for event in events)
    detail = "; ".join([summary, *(event.detail for event in events)])
    return Finding("exporters", not wrong, detail, _PAGES, number=number)
