"""What this machine has, what works, and why what does not: the findings of `whorl doctor`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .finding import EVERYTHING, Finding, package

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


def findings(
    store: str | None = None, *, host: str | None = None, socket: str | None = None, urls: Sequence[str] = ()
) -> list[Finding]:
    """What this machine has, one thing after another; with a store, its files too.

    `host` and `socket` are where DCGM's engine is, and `urls` the pages of exporters that are read as well.
    """
    from .dcgm_finding import dcgm_findings
    from .sources import gpm_finding, page_finding

    nvml = _nvml()
    found = [*_python(), nvml, *([gpm_finding()] if nvml.works else []), _cupy(), *dcgm_findings(host, socket)]
    found += [page_finding(urls)] if urls else []
    found += [_settings(), _permission(), _kernel_log(), _slurm()]
    return found if store is None else found + _store(store)


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
    return [replace(one, vital=True) for one in (_nvml(), _cupy())]


def _python() -> list[Finding]:
    uses = {"duckdb": "sql", "polars": "import, analysis", "rich": "tables for people"}
    uses |= dict.fromkeys(("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"), "export otlp")
    return [*node_findings(), *(package(name, use) for name, use in uses.items())]


def _nvml() -> Finding:
    """Whether the NVIDIA driver answers, and which GPUs it shows."""
    from ..collectors.collect import open_backend
    from ..errors import InputError

    use = "measuring real GPUs"
    try:
        opened = open_backend("nvml", {}, patience_s=30.0)
    except InputError as error:
        return Finding("NVML", False, str(error).removeprefix("NVML: "), use)
    assert opened is not None
    backend, devices = opened
    backend.close()
    found = [device for device in devices if device.parent is None]
    models = Counter(str(device.row["model"] or "unknown") for device in found)
    shown = ", ".join(f"{number} x {model}" for model, number in models.items())
    detail = f"driver {found[0].row['driver'] or 'unknown'}, GPUs: {shown}"
    return Finding("NVML", True, detail, use, number=len(found))


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
        done = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            [sys.executable, "-c", _ASK_CUPY], capture_output=True, text=True, timeout=60, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("CuPy", False, "importing it took over 60 s", use)
    words = done.stdout.split()[-4:]
    if done.returncode or len(words) < 4:
        return Finding("CuPy", False, _no_cupy(done), use)
    version, runtime, driver, number = words
    made, reached = cuda_version(int(runtime)), cuda_version(int(driver))
    if driver == "0":
        return Finding("CuPy", False, f"{version} for CUDA {made}; it finds no NVIDIA driver", use)
    if int(driver) // 1000 < int(runtime) // 1000:
        detail = f"{version} is for CUDA {made}, but the driver supports at most {reached}: {fitting(int(driver))}"
        return Finding("CuPy", False, detail, use)
    if not number.isdigit() or number == "0":
        return Finding("CuPy", False, f"{version} for CUDA {made} shows no GPU ({number})", use)
    return Finding("CuPy", True, f"{version} for CUDA {made}, driver for {reached}, {number} GPUs", use)


def _no_cupy(done: subprocess.CompletedProcess[str]) -> str:
    """Why the process that loads CuPy gave no answer."""
    from ..kernels.cupy_library import no_cache

    last_line = done.stdout.splitlines()[-1:]
    if last_line and last_line[0].startswith(_NO_CUPY):
        number, message, place = json.loads(last_line[0].removeprefix(_NO_CUPY))
        return no_cache(OSError(number, message, place)) or message
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with status {done.returncode}"


def _settings() -> Finding:
    """Restore what an earlier run left changed, and say what is changed now."""
    from ..errors import InputError
    from ..probes.restore import pending, restore_left_over, state_folder

    what, use = "settings of GPUs", "--lock-clock, --power-limit"
    messages = restore_left_over()
    try:
        changed = pending(state_folder())
        for file in changed:
            file.close()
    except (InputError, OSError) as error:
        return Finding(what, False, str(error), use)
    messages += [
        f"process {file.saved.pid} has changed {file.gpu} and will restore it"
        for file in changed
        if file.living and file.saved is not None
    ]
    return Finding(what, not any(file.left for file in changed), "; ".join(messages) or "nothing to restore", use)


def _permission() -> Finding:
    """Whether this process may change settings: the driver asks for CAP_SYS_ADMIN outside of every container."""
    what, use = "changing settings of GPUs", "--lock-clock, --power-limit"
    try:
        status = Path("/proc/self/status").read_text()
        whole = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return Finding(what, os.geteuid() == 0, "not certain here; root may", use)
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    if whole and mask >> _CAP_SYS_ADMIN & 1:
        return Finding(what, True, "this process has CAP_SYS_ADMIN", use)
    return Finding(what, False, "needs root with CAP_SYS_ADMIN, which this process lacks", use)


def _slurm() -> Finding:
    """Whether Slurm's controller answers: without one, as in a container, Slurm's commands are of no use."""
    from ..errors import SchedulerError
    from .slurm import Slurm

    use = "campaigns, advice for jobs"
    try:
        partitions = Slurm().call("scontrol", "-o", "show", "partition").splitlines()
    except SchedulerError as error:
        return Finding("Slurm", False, str(error), use)
    number = sum(line.startswith("PartitionName=") for line in partitions)
    return Finding("Slurm", True, f"its controller answers: {number} partition{'s' if number != 1 else ''}", use)


def _store(path: str) -> list[Finding]:
    from ..errors import WhorlError
    from ..store import Store
    from ..store.folder import missing_folders, read_about

    try:
        gone = missing_folders(Path(path), read_about(Path(path)))  # opening makes them again
        opened = Store.open(path)
        unsound = opened.check()
    except WhorlError as error:
        return [Finding("store", False, str(error), vital=True)]
    lost = "missing, and with it its rows: restore it from a copy"
    findings = [Finding("store table", False, f"{folder}: {lost}", vital=True) for folder in gone]
    findings += [Finding("store file", False, f"{file}: {reason}", vital=True) for file, reason in unsound.items()]
    try:
        rows: list[Any] = opened.sql(
            "select (select count(*) from runs) runs, (select count(*) from telemetry) telemetry, "
            '(select count(distinct gpu) from gpus) as "GPU identities", '
            "(select count(distinct import_id) from imports) imports"
        ).to_pylist()
    except WhorlError as error:
        return [Finding("store", False, str(error), vital=True), *findings]
    if not rows[0]["runs"] and opened.root / "runs" not in gone and opened.scan("results").head(1).collect().height:
        lost = "no runs, though results has results of some: restore the files of this folder from a copy"
        findings.append(Finding("store table", False, f"{opened.root / 'runs'}: {lost}", vital=True))
    counted = ", ".join(f"{number:,} {name}" for name, number in rows[0].items())
    free = shutil.disk_usage(path).free / 2**30
    writable = "writable" if opened.writable() else "this user may only read it"
    return [Finding("store", True, f"{path}: {counted}; {free:,.1f} GiB free; {writable}"), *findings]
