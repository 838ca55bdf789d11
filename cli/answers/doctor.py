"""`whorl doctor`: what works on this machine, and why the rest does not.

    findings(store) -> settings of whorl.toml, Python's packages, NVML and GPM, CuPy, DCGM, exporters, permissions,
                       kernel log, meters of the node, Slurm, and every file of the store

CuPy and DCGM are asked in processes of their own: a library that does not fit may crash, and an engine may hang.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...dashboards.document import CellSource, Column, Command, Document, Part, Table, TableColumns
from ...dashboards.words import listed, many
from ...errors import InputError, SchedulerError, WhorlError
from ...jobs.node_doctor import (
    NodeFinding,
    NodeReport,
    ask_apart,
    cupy_finding,
    nvml_error,
    nvml_finding,
    open_nvml,
    package_finding,
    print_findings,
    whorl_findings,
)

if TYPE_CHECKING:
    from ...collectors.dcgm.connection import EngineConnection

_VARIABLES = {"store": "WHORL_STORE", "partition": "SBATCH_PARTITION", "account": "SBATCH_ACCOUNT"}
"""The variable of the environment that goes before a key of whorl.toml."""
_PACKAGES = {
    "duckdb": "sql",
    "polars": "import, analysis",
    "scipy": "verdicts, analysis",
    "scikit-learn": "jobs chain, jobs wait",
    "ClusterShell": "host lists",
    "rich": "tables for people",
    "opentelemetry-sdk": "export otlp",
    "opentelemetry-exporter-otlp-proto-http": "export otlp",
}
_SETTINGS, _USE_OF_DCGM = "--lock-clock, --power-limit", "collect --backend dcgm"
_DCGM = partial(NodeFinding, "DCGM", needed_for=_USE_OF_DCGM)
_ASK_DCGM = "import json; from whorl.cli.answers.doctor import ask_dcgm; ask_dcgm(*json.loads(sys.argv[1]))"
_DCGM_PATIENCE_S = 60.0
_EVERY_US = 10_000_000  # so seldom that the engine does nothing for us
_GPM_APART_S = 0.15  # between the two looks of GPM
_NAMED = 8
_WORKS: tuple[str, CellSource] = ("works", lambda row: "yes" if row.works else "no")
_CAP_SYS_ADMIN = 21  # as capabilities(7) numbers it


def findings(
    store: str | None = None, *, host: str | None = None, socket: str | None = None, urls: Sequence[str] = ()
) -> list[NodeFinding]:
    """What this machine has, one thing after another; with a store, its files too.

    `host` and `socket` are where DCGM's engine is, and `urls` the pages of exporters that are read as well.
    """
    nvml = nvml_finding()
    rows = [*configuration_findings(), *whorl_findings()]
    rows += [package_finding(name, needed_for) for name, needed_for in _PACKAGES.items()]
    rows += [nvml, *([gpm_finding()] if nvml.works else []), cupy_finding(), *dcgm_findings(host, socket)]
    rows += [page_finding(urls)] if urls else []
    rows += [settings_finding(), permission_finding(), kernel_log_finding(), node_power_finding(), slurm_finding()]
    return rows if store is None else rows + store_findings(store)


def configuration_findings() -> list[NodeFinding]:
    """Each value that whorl.toml and the environment state, and where it comes from; one row where nothing is stated.

    A file that cannot be used is a vital finding, since every verb that needs its values refuses to work.
    """
    from ...store.configuration import KEYS, configuration, configuration_files

    options = "options that are left out"
    try:
        settings = configuration()
    except InputError as error:
        return [NodeFinding("whorl.toml", False, str(error), options, vital=True)]
    rows = []
    for key in KEYS:
        setting, variable = settings.get(key), _VARIABLES.get(key, "")
        if os.environ.get(variable):
            hides = "" if setting is None else f"; {setting.path} says {setting.value}"
            rows.append(NodeFinding(key, True, f"{os.environ[variable]}, from {variable}{hides}", options))
        elif setting is not None:
            value, is_table = setting.value, isinstance(setting.value, dict)
            if isinstance(value, dict):
                value = ", ".join(value) or "no keys"
            rows.append(NodeFinding(f"[{key}]" if is_table else key, True, f"{value}, from {setting.path}", options))
    places = " and ".join(map(str, configuration_files()))
    return rows or [NodeFinding("whorl.toml", True, f"no setting: neither WHORL_STORE nor {places}", options)]


# -- sources of readings ------------------------------------------------------------------------------------------


def gpm_finding() -> NodeFinding:
    """Whether the driver gives profiling metrics by itself (GPM)."""
    from ...collectors.backend import Reading, Status
    from ...store.metrics import METRICS, Gpm

    row = partial(NodeFinding, "GPM", needed_for="profiling metrics without DCGM")
    gpm = [number for number, metric in enumerate(METRICS) if isinstance(metric.nvml, Gpm)]
    try:
        backend, devices = open_nvml()
        try:
            gpu_of = {device.gpu: device.parent or device.gpu for device in devices}
            list(backend.read(list(gpu_of), slow=True))  # GPM tells what happened between two looks
            time.sleep(_GPM_APART_S)
            readings = [reading for reading in backend.read(list(gpu_of), slow=True) if isinstance(reading, Reading)]
        finally:
            backend.close()
    except InputError as error:
        return row(False, nvml_error(error))
    counts = {reading.gpu: sum(reading.statuses[number] == Status.OK for number in gpm) for reading in readings}
    able = len({gpu_of[device] for device, count in counts.items() if count})
    if not able:
        return row(False, "no GPU of this node has it with this driver: it needs Hopper or newer")
    gpus = len(set(gpu_of.values()))
    return row(True, f"{max(counts.values())} metrics on {able} of {gpus} GPUs", number=able)


def page_finding(urls: Sequence[str]) -> NodeFinding:
    """Whether the pages of exporters can be read, and the GPUs that they show."""
    from ...collectors.exporter.exporter import ExporterPages
    from ...store.events import Event
    from ...store.vocabulary import EventKind

    row = partial(NodeFinding, "exporters", needed_for="collect --backend prometheus")
    exporter = ExporterPages(url=urls)
    try:
        devices = exporter.devices()
        events = [reading for reading in exporter.read([], slow=True) if isinstance(reading, Event)]
    except InputError as error:
        return row(False, str(error))
    finally:
        exporter.close()
    gpus = sum(device.parent is None for device in devices)
    summary = f"{many(gpus, 'GPU')} on {many(len(urls), 'page')}"
    gone = any(event.kind == EventKind.SOURCE_GONE for event in events)
    return row(not gone, "; ".join([summary, *(event.detail for event in events)]), number=gpus)


def dcgm_findings(host: str | None = None, socket: str | None = None) -> list[NodeFinding]:
    """The bindings, the library and the engine, and the profiling fields."""
    from ...collectors.dcgm.bindings import find_bindings

    try:
        folder = find_bindings().folder
    except InputError as error:
        return [NodeFinding("DCGM bindings", False, str(error), _USE_OF_DCGM)]
    late = f"the engine has not answered for {_DCGM_PATIENCE_S:.0f} s: restart it (systemctl restart nvidia-dcgm)"
    answer = ask_apart(_DCGM, _ASK_DCGM, json.dumps([host, socket]), patience_s=_DCGM_PATIENCE_S, late=late)
    return [NodeFinding("DCGM bindings", True, f"in {folder}", _USE_OF_DCGM), *answer]


def ask_dcgm(host: str | None, socket: str | None) -> None:
    """Print the findings about DCGM's library and engine: the body of the other process."""
    from ...collectors.dcgm.bindings import find_bindings
    from ...collectors.dcgm.connection import connect

    bindings = find_bindings()
    try:
        bindings.load()
        connection = connect(bindings, host, socket, interval_us=_EVERY_US, slow_us=_EVERY_US)
    except InputError as error:
        print_findings([_DCGM(False, str(error))])
    else:
        versions = bindings.version(), bindings.engine_version(connection.handle)
        library, engine = (version or "(version not told)" for version in versions)
        place = f"engine {engine} at {connection.address}"
        if connection.embedded:
            place = "no engine runs on this node, so one runs within the collector"
        gpus = [entity.key for entity in connection.entities if entity.parent is None]
        detail = f"library {library}, {place}, {many(len(gpus), 'GPU')}"
        print_findings([_DCGM(True, detail, number=len(gpus)), _profiling_finding(connection, gpus)])
        connection.close()


def _profiling_finding(connection: EngineConnection, gpus: Sequence[tuple[int, int]]) -> NodeFinding:
    """Which profiling fields the engine measures: it was asked for all that whorl reads."""
    from ...collectors.dcgm.connection import PROFILING, way_out

    row = partial(NodeFinding, "DCGM profiling", needed_for="profiling fields through DCGM")
    watched = [connection.watched.get(gpu, set()).intersection(PROFILING) for gpu in gpus]
    if all(fields.issuperset(PROFILING) for fields in watched):
        return row(True, f"all {len(PROFILING)} fields on all GPUs")
    reasons = []
    for code, numbers, count in connection.refused_profiling():
        refused = "no field" if len(numbers) == len(PROFILING) else f"not {', '.join(map(str, sorted(numbers)))}"
        reasons.append(f"{refused} on {count} of {len(gpus)} GPUs: {way_out(code)}")
    return row(any(watched), "; ".join(reasons) or "the engine gives no reason")


# -- the machine --------------------------------------------------------------------------------------------------


def settings_finding() -> NodeFinding:
    """Restore what an earlier run left changed, and say what is changed now."""
    from ...probes.settings import pending, restore_left_over, state_folder

    row = partial(NodeFinding, "settings of GPUs", needed_for=_SETTINGS)
    messages = restore_left_over()
    try:
        changed_files = pending(state_folder())
        for file in changed_files:
            file.close()
    except (InputError, OSError) as error:
        return row(False, str(error))
    messages += [
        f"process {file.saved.pid} has changed {file.gpu} and will restore it"
        for file in changed_files
        if file.living and file.saved is not None
    ]
    return row(not any(file.left for file in changed_files), "; ".join(messages) or "nothing to restore")


def permission_finding() -> NodeFinding:
    """Whether this process may change settings: the driver asks for CAP_SYS_ADMIN outside of every container."""
    row = partial(NodeFinding, "changing settings of GPUs", needed_for=_SETTINGS)
    try:
        status = Path("/proc/self/status").read_text()
        all_users = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    except OSError:
        return row(os.geteuid() == 0, "not certain here; root may")
    mask = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:")), 0)
    if all_users and mask >> _CAP_SYS_ADMIN & 1:
        return row(True, "this process has CAP_SYS_ADMIN")
    return row(False, "needs root with CAP_SYS_ADMIN, which this process lacks")


def kernel_log_finding() -> NodeFinding:
    """Whether this user may read what the kernel says of GPUs."""
    from ...collectors.kernel_log import KernelLog, name_lost_boards

    row = partial(NodeFinding, "kernel log", needed_for="names of lost GPUs")
    log = KernelLog()
    log.close()
    if not log.readable:
        return row(False, "cannot be read: run as root, with CAP_SYSLOG, or in the group systemd-journal")
    return row(True, f"readable{name_lost_boards()}")


def node_power_finding() -> NodeFinding:
    """Which meters of the node `whorl collect` reads beside its GPUs, and why not the others."""
    from ...collectors.node_power import node_meters

    meters = node_meters()
    says = "; ".join(f"{name}: {meter.reason or 'readable'}" for name, meter in meters.items())
    number = sum(meter.reason is None for meter in meters.values())
    return NodeFinding("node power", number > 0, says, "collect: the energy of nodes", number=number)


def slurm_finding() -> NodeFinding:
    """Whether Slurm's controller answers: without one, as in a container, Slurm's commands are of no use."""
    from ...jobs.slurm import Slurm

    row = partial(NodeFinding, "Slurm", needed_for="campaigns, advice for jobs")
    try:
        partitions = Slurm().call("scontrol", "-o", "show", "partition").splitlines()
    except SchedulerError as error:
        return row(False, str(error))
    number = sum(line.startswith("PartitionName=") for line in partitions)
    return row(True, f"its controller answers: {many(number, 'partition')}")


# -- the store ----------------------------------------------------------------------------------------------------


def store_findings(path: str) -> list[NodeFinding]:
    """What a store holds, and each of its folders and files that is missing or damaged."""
    from ...store import Store
    from ...store.folder import missing_folders, read_about

    broken = partial(NodeFinding, works=False, vital=True)
    rows: list[NodeFinding] = []
    try:
        missing = missing_folders(Path(path), read_about(Path(path)))  # opening makes them again
        store = Store.open(path)
        loss = "missing, and with it its rows: restore it from a copy"
        rows += [broken("store table", detail=f"{folder}: {loss}") for folder in missing]
        rows += [broken("store file", detail=f"{file}: {reason}") for file, reason in store.check().items()]
        (counts,) = store.sql(
            "select (select count(*) from runs) runs, (select count(*) from telemetry) telemetry, "
            '(select count(distinct gpu) from gpus) as "GPU identities", '
            "(select count(distinct import_id) from imports) imports"
        ).to_pylist()
    except WhorlError as error:
        return [broken("store", detail=str(error)), *rows]
    runs = store.root / "runs"
    if not counts["runs"] and runs not in missing and store.scan("results").head(1).collect().height:
        loss = "no runs, though results has results of some: restore the files of this folder from a copy"
        rows.append(broken("store table", detail=f"{runs}: {loss}"))
    contents = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    free_gib = shutil.disk_usage(path).free / 2**30
    writable = "writable" if store.writable() else "this user may only read it"
    return [NodeFinding("store", True, f"{path}: {contents}; {free_gib:,.1f} GiB free; {writable}"), *rows]


# -- for programs and for people -----------------------------------------------------------------------------------


def machine_mapping(findings: Sequence[NodeFinding]) -> dict[str, Any]:
    """`whorl.doctor/1`."""
    return {
        "schema": "whorl.doctor/1",
        "findings": [_finding(row) | {"needed_for": row.needed_for or None} for row in findings],
    }


def _finding(row: NodeFinding) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("what", "works", "detail")}


def machine_document(findings: Sequence[NodeFinding]) -> Document:
    """Whether whorl works on this machine, and every part; what does not work comes first."""
    broken = list(dict.fromkeys(row.what for row in findings if row.vital and not row.works))
    missing = list(dict.fromkeys(row.what for row in findings if not row.works and not row.vital))
    answer = f"something that whorl needs does not work: {listed(broken, _NAMED)}" if broken else "whorl works here"
    if missing:
        do = "does" if len(missing) == 1 else "do"
        answer += f"; {many(len(missing), 'part')} that only some verbs need {do} not: {listed(missing, _NAMED)}"
    columns: TableColumns = [
        _WORKS,
        (Column("needed for", "sentence"), "needed_for"),
        (Column("what", "sentence"), lambda row: f"{row.what}: {row.detail}"),
    ]
    broken_first = sorted(findings, key=lambda row: (row.works, not row.vital))
    return Document("Doctor", [answer, Table.of(broken_first, columns)])


def node_mapping(report: NodeReport) -> dict[str, Any]:
    """`whorl.campaign.doctor/1`."""
    return {
        "schema": "whorl.campaign.doctor/1",
        "node": report.node,
        "job": report.job,
        "waited_s": round(report.waited_s, 1),
        "works": report.works,
        "findings": [_finding(row) | {"needed": row.vital} for row in report.findings],
    }


def node_document(report: NodeReport, store: str, fleet: str | None) -> Document:
    """Whether a campaign can measure on a node, what it has and lacks, and what to do next, with the simulated fleet
    of the question."""
    missing = ", ".join(finding.what for finding in report.findings if finding.vital and not finding.works)
    answer = "a campaign can measure" if report.works else "a campaign cannot measure"
    parts: list[Part] = [
        f"node {report.node}, by job {report.job}, after {report.waited_s:.0f} s: {answer} there"
        + (f": {missing}" if missing else ""),
    ]
    if report.works:
        simulated = "" if fleet is None else f" --set {shlex.quote(f'fleet={fleet}')}"
        parts.append(Command(f"next: whorl campaign plan --suite quick --store {shlex.quote(store)}{simulated}"))
    parts.append(Table.of(report.findings, [_WORKS, ("what", "what"), (Column("detail", "sentence"), "detail")]))
    return Document(f"Node {report.node}", parts)
