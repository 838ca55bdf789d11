"""The formats that are no plain tables. A format is one file in `tools/` and one row here.

A format is known from the head of the file's content, never from the name of the file. Its reader turns the content
into rows whose columns are named after their meanings (`rows.py`); units, identities, refusals, duplicates, provenance
and reports are those of all imports. `tools/omnistat.py` is a short one to begin from. A reader gets the
lines of one host after the other (`lines.py`); a time before a line is read by `times.Times`, in any spelling, or from
--at and --every.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ...errors import InputError
from . import allocations, content, lines, node_power
from .content import Content, Sheet
from .options import Options
from .rows import Rows
from .times import NS, text_of_ns
from .tools import dmon, exporter, gpu_burn, nvbandwidth, nvidia_smi_log, omnistat, profilers, superbench

HEAD = 1 << 16  # bytes of a file by which it is known, behind lines of nvidia-smi that it could not work
_MESSAGES = re.compile(
    rb"(?:(?:Failed to initialize|Unable to determine|NVIDIA-SMI has failed|NVML library version)[^\n]*\n\s*)+"
)
_OLDEST_NS = 1_136_073_600 * NS  # 2006: a file that says it is older has no true time


@dataclass(frozen=True, slots=True)
class Format:
    """A format: `fits` is true of what a file of it begins with; `read` adds the rows of the whole text.

    `read` raises InputError where nothing of the file can be used. `every_s` is the time between two readings that the
    tool waits if nobody says otherwise.
    """

    name: str  # as reports and the table `imports` have it
    kind: Literal["runs", "telemetry", "jobs", "node_power"]
    fits: Callable[[str], object]
    read: Callable[[str, Rows], None]
    every_s: float | None = None


FORMATS: tuple[Format, ...] = (
    Format("nvbandwidth", "runs", nvbandwidth.fits, nvbandwidth.read),
    Format("gpu-burn", "runs", gpu_burn.fits, gpu_burn.read),
    Format("superbench", "runs", superbench.fits, superbench.read),
    Format("nvprof", "runs", profilers.fits_nvprof, profilers.read_nvprof),
    Format("ncu", "runs", profilers.fits_ncu, profilers.read_ncu),
    Format(dmon.DCGMI, "telemetry", dmon.ENTITY_HEADER.search, dmon.read_dcgmi, every_s=1.0),
    Format(dmon.NVIDIA_SMI, "telemetry", dmon.fits_nvidia_smi, dmon.read_nvidia_smi, every_s=1.0),
    Format(nvidia_smi_log.XML, "telemetry", nvidia_smi_log.XML_BEGIN.search, nvidia_smi_log.read_xml),
    Format(nvidia_smi_log.TEXT, "telemetry", nvidia_smi_log.TEXT_BEGIN.search, nvidia_smi_log.read_text),
    Format(node_power.IPMITOOL, "node_power", node_power.fits_ipmitool, node_power.read_ipmitool),
    Format(node_power.REDFISH, "node_power", node_power.fits_redfish, node_power.read_redfish),
    Format(node_power.EXPORTER, "node_power", node_power.fits_page, node_power.read_page),
    Format(exporter.NAME, "telemetry", exporter.BEGIN.search, exporter.read),
    Format(exporter.NAME, "telemetry", exporter.ANSWER.match, exporter.read_answer),
    Format(omnistat.NAME, "telemetry", omnistat.fits, omnistat.read),
    Format(allocations.SCONTROL, "telemetry", allocations.SCONTROL_BEGIN.search, allocations.read_scontrol),
)


_AS_CSV = "write who had which GPU as a CSV with job_id, node, gpu, began, ended"
_OF_STREAM = re.compile(r"(?m)^ *[0-9]{4}/[0-9]{2}/[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3},")
# What begins like a table and holds nothing that can be stored: a pattern of its head, and what to do instead.
_OTHERS = (
    (
        r"^#\s*(?:date\s+time\s+)?gpu[\s,]+pid\b",
        "a log of nvidia-smi pmon, which is about processes; of GPUs, log nvidia-smi dmon -o DT",
    ),
    (
        r"\A(?=.*\bpid\b).*\bused_(?:gpu_)?memory\b",
        "what nvidia-smi --query-compute-apps prints, which is about processes; of GPUs, log nvidia-smi "
        "--query-gpu=timestamp,uuid,name,memory.used --format=csv",
    ),
    (
        r"^\| NVIDIA-SMI ",
        "what nvidia-smi prints for people; save nvidia-smi -q instead, or log nvidia-smi "
        "--query-gpu=timestamp,uuid,name,power.draw,clocks.sm,temperature.gpu,utilization.gpu --format=csv -l 1",
    ),
    (
        r"^\s*GPU0\s.*\b(?:CPU|NUMA) Affinity",
        "what nvidia-smi topo prints, which has no measurements; the GPUs of a node, with their addresses, are in "
        "nvidia-smi -q",
    ),
    (
        r"^#\s+size\s+count\s+type\s+redop\b|^HPLinpack |^T/V +N +NB |^ ?Prog= .*N_left=",
        "what nccl-tests or HPL prints, which is of several GPUs together; of single ones, run nvbandwidth --json or "
        "gpu_burn",
    ),
    (
        r"^\| Diagnostic +\| Result|\A\s*\{\s*\"DCGM (?:GPU )?Diagnostic\"",
        "what dcgmi diag prints; write its verdicts as a CSV with node, index, test and result, and give --map "
        "test=workload --map result=status",
    ),
    (
        r"\A *JobID(?:Raw)? .*\n *-{4,} +-",
        "what sacct prints for people; save it with sacct -P and read that with whorl jobs import --log",
    ),
    (
        r"\AGPU [0-9]+: .*\(UUID: ",
        "what nvidia-smi -L prints, which has no measurements; save nvidia-smi -q, which names the GPUs, too",
    ),
    (
        r"^\[CUDA Bandwidth Test\]",
        "what CUDA's bandwidthTest prints, which does not say which GPU it is of; run nvbandwidth --json instead",
    ),
    (
        r"^[^|\n]+\| *[0-9.]+ *\|? *Watts *\|",
        "what ipmitool prints of sensors; save ipmitool dcmi power reading, or write a CSV with time, node, power [W]",
    ),
    (
        r"\A(?:\w+\|)*JobID(?:Raw)?\||\A\s*\{[\s\S]*\"derived_exit_code\"",
        "what sacct prints of jobs; read it with whorl jobs import --log",
    ),
    (
        r"\A[0-9]{2}/[0-9]{2}/[0-9]{4} [0-9:]{8}(?:\.[0-9]+)?;[A-Za-z]{1,2};|\A\"JOB_[A-Z]+\" \"[0-9.]+\" [0-9]+ ",
        f"an account of jobs as PBS or LSF writes it; {_AS_CSV}",
    ),
)


def read(loaded: Content, options: Options) -> Sheet:
    """The content as a sheet: in one of the formats, else as a table (`content.py`). It is empty then.

    Raises InputError.
    """
    path = loaded.path
    front = _MESSAGES.match(loaded.data)
    begin = front.end() if front else 0
    head = loaded.data[begin : begin + HEAD].decode("utf-8-sig", "replace")
    _, first_of_host, _ = lines.by_host(head, path.name)[0]
    reader = next((reader for reader in FORMATS if reader.fits(first_of_host)), None)
    if reader is None:
        for pattern, instead in _OTHERS:
            if re.search(pattern, head, re.MULTILINE | re.IGNORECASE):
                raise InputError(f"{path} is {instead}")
        return content.cut(loaded, options)
    if options.header is not None:
        raise InputError(f"{path} is of {reader.name}, which names its values: leave out header=")
    text = loaded.take().decode("utf-8-sig", "replace")
    rows = _rows(loaded, reader, text, options)
    of_stream = lines.written(text) if _OF_STREAM.search(text) else ()
    streams = [number for number, line in of_stream if _OF_STREAM.match(line)]
    rows.refuse_rest(streams, f"it is of nvidia-smi --query-gpu, and the file is of {reader.name}: split it")
    del text
    sheet = rows.finished()
    if not sheet.rows:
        raise InputError(f"{path} is of {reader.name} and holds no measurement: nothing to import")
    if not sheet.frame.height:
        reason, refused = max(sheet.refusals().items(), key=lambda entry: len(entry[1]))
        raise InputError(f"{path}: none of its {sheet.rows} rows can be used: {reason} (first line {min(refused)})")
    return sheet


def _rows(loaded: Content, reader: Format, text: str, options: Options) -> Rows:
    """The rows of a file. If it has no times and no option gives them, it was written when it was last changed."""
    changed = loaded.path.stat().st_mtime_ns
    believed = options.at is None and _OLDEST_NS < changed <= time.time_ns() + NS
    step_s = options.every or reader.every_s

    def rows_from(began_ns: int | None) -> Rows:
        rows = Rows(Sheet(loaded.file, options, format=reader.name, kind=reader.kind), began_ns, step_s)
        _read_hosts(reader, text, rows)
        return rows

    rows = rows_from(changed if believed else None)
    date = f"when the file was last changed ({text_of_ns(changed)[:19]} UTC); if that is wrong, import it into a new"
    if believed and rows.sweeps:
        behind_s = (rows.sweeps - 1) * (step_s or 0.0)
        if behind_s:  # read again, as it is known how many readings there are
            rows = rows_from(changed - round(behind_s * NS))
            rows.note(f"its times are counted back, {step_s:g} s apart, from {date} store with --at and --every")
        else:
            rows.note(f"its time is taken from {date} store with --at")
    if reader.kind == "runs" and believed and rows.date_events(changed):
        rows.note(f"what happened to a GPU has no time in it, so that is {date} store with --at")
    return rows


def _read_hosts(reader: Format, text: str, rows: Rows) -> None:
    """Read the lines of each host. One of which nothing can be read is refused, and the file if none can."""
    parts = lines.by_host(text, rows.file)
    for host, part, numbers in parts:
        rows.host, rows.numbers = host, numbers
        try:
            reader.read(part, rows)
        except InputError as error:
            if len(parts) == 1 or (not len(rows) and host == parts[-1][0]):
                raise
            rows.refuse(1, str(error).removeprefix(f"{rows.file}: "))
    rows.host, rows.numbers = "", ()
