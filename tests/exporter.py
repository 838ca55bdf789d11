"""An exporter that is not there: pages as the versions of dcgm-exporter write them, and a server that shows them.

The forms follow what dcgm-exporter 2.0 to 4.8 and a Prometheus print; all numbers and names are made up.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLANK, NOT_SUPPORTED, NOT_PERMITTED = 0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF2, 0x7FFFFFFFFFFFFFF3
Number = float | int | str


def uuid(number: int) -> str:
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


@dataclass
class Exported:
    """A GPU (or MIG instance) on a page, with its numbers as the exporter prints them, by name of the metric."""

    number: int
    values: dict[str, Number]
    node: str = "node-a"
    instance: tuple[str, str] | None = None  # profile, number
    labels: dict[str, str] = field(default_factory=dict)
    stamp_ms: int | None = None


HELP = {
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W).",
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": "Total energy consumption since boot (in mJ).",
    "DCGM_FI_DEV_POWER_VIOLATION": "Throttling duration due to power constraints (in us).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
}


def usual(watts: Number = 155.342, millijoules: Number = 123456789012, **changes: Number) -> dict[str, Number]:
    """What every version prints by default, in part."""
    return {
        "DCGM_FI_DEV_SM_CLOCK": 1410,
        "DCGM_FI_DEV_MEM_CLOCK": 1215,
        "DCGM_FI_DEV_GPU_TEMP": 41,
        "DCGM_FI_DEV_POWER_USAGE": watts,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": millijoules,
        "DCGM_FI_DEV_GPU_UTIL": 97,
        "DCGM_FI_DEV_FB_USED": 3821,
        "DCGM_FI_DEV_XID_ERRORS": 0,
        **changes,
    }


def labels_of(gpu: Exported, version: str) -> dict[str, str]:
    """The labels of a GPU's series in the order of a version: 1.x, 2.0, 2.x, 3.x, 4.x, or "federated"."""
    first = {"gpu": str(gpu.number), "uuid" if version == "1.x" else "UUID": uuid(gpu.number)}
    if version in ("1.x", "2.0"):
        return first | gpu.labels
    if version in ("4.x", "federated"):
        first["pci_bus_id"] = f"00000000:{gpu.number:02X}:00.0"
    first |= {"device": f"nvidia{gpu.number}", "modelName": "NVIDIA A100-SXM4-80GB"}
    if gpu.instance is not None:
        first |= {"GPU_I_PROFILE": gpu.instance[0], "GPU_I_ID": gpu.instance[1]}
    first["Hostname"] = gpu.node
    if version in ("4.x", "federated"):
        first["DCGM_FI_DRIVER_VERSION"] = "580.126.09"
    if version == "federated":
        first |= {"instance": f"{gpu.node}:9400", "job": "dcgm"}
    return first | gpu.labels


def page(gpus: Sequence[Exported], version: str = "3.x", *, names: Mapping[str, str] | None = None) -> str:
    """The page of these GPUs; `names` renames metrics."""
    metrics = dict.fromkeys(name for gpu in gpus for name in gpu.values)
    heads, groups = [], []
    comma = ", " if version == "2.0" else ","
    for metric in metrics:
        name = (names or {}).get(metric, metric)
        kind = "counter" if metric.endswith(("CONSUMPTION", "VIOLATION")) else "gauge"
        head = [] if version == "federated" else [f"# HELP {name} {HELP.get(metric, 'Words.')}"]
        heads.append([*head, f"# TYPE {name} {kind if version != 'federated' else 'untyped'}"])
        lines = []
        for gpu in gpus:
            if metric in gpu.values:
                quoted = {
                    key: label.replace("\\", r"\\").replace('"', r"\"")
                    for key, label in labels_of(gpu, version).items()
                }
                text = comma.join(f'{key}="{label}"' for key, label in quoted.items())
                stamp = "" if gpu.stamp_ms is None else f" {gpu.stamp_ms}"
                lines.append(f"{name}{{{text}}} {gpu.values[metric]}{stamp}")
        groups.append(lines)
    if version == "2.0":  # it names all metrics first
        order = [line for head in heads for line in head] + ["", ""] + [line for group in groups for line in group]
    else:
        order = [line for head, group in zip(heads, groups, strict=True) for line in [*head, *group]]
    return "\n".join([*order, ""])


@dataclass
class Answer:
    """What the server sends: `cut` leaves out so many bytes that were announced."""

    body: str | bytes = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = 0
    packed: bool = False


class Exporter:
    """A server on a port of its own; `answer` makes what it sends each time."""

    def __init__(self, answer: Callable[[str], Answer]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, str]]] = []
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # headers and body in one packet, as real exporters send them

            def do_GET(self) -> None:
                exporter.asked.append((self.path, dict(self.headers)))
                answer = exporter.answer(self.path)
                body = answer.body.encode() if isinstance(answer.body, str) else answer.body
                headers = {"Content-Type": "text/plain; version=0.0.4"} | answer.headers
                if answer.packed:
                    body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
                self.send_response(answer.status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body[: len(body) - answer.cut])
                if answer.cut:
                    self.close_connection = True

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/metrics"


@contextmanager
def exporting(answer: Callable[[str], Answer] | str) -> Iterator[Exporter]:
    """A server that shows this page, or what the function says at each request for a path."""
    exporter = Exporter((lambda _: Answer(answer)) if isinstance(answer, str) else answer)
    thread = threading.Thread(target=exporter.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield exporter
    finally:
        exporter.server.shutdown()
        exporter.server.server_close()
        thread.join()


def smi_page(gpu: int, node: str = "") -> str:
    """A page of nvidia_gpu_exporter: the values that nvidia-smi has, in base units, and UUIDs without GPU-."""
    host = f',instance="{node}:9835"' if node else ""
    whose = f'uuid="{uuid(gpu).removeprefix("GPU-")}"{host}'
    info = f'{whose},name="NVIDIA L4",index="{gpu}",serial="[N/A]",driver_version="580.1",vbios_version="95.04"'
    values = {
        "power_draw_watts": 28.07, "energy_joules_total": 123456.789, "clocks_current_sm_clock_hz": 1.41e09,
        "clocks_current_memory_clock_hz": 6.251e09, "temperature_gpu": 34, "utilization_gpu_ratio": 0.57,
        "memory_used_bytes": 706740224, "memory_total_bytes": 24e9, "enforced_power_limit_watts": 72,
        "clocks_event_reasons_active": 4, "pstate": 0,
    }  # fmt: skip
    lines = [f"nvidia_smi_{name}{{{whose}}} {value}" for name, value in values.items()]
    app = f'nvidia_smi_compute_app_used_memory_bytes{{{whose},pid="7",process_name="a"}} 5'
    return "\n".join(
        [*lines[:4], f"nvidia_smi_gpu_info{{{info}}} 1", app, *lines[4:], "nvidia_smi_failed_scrapes_total 0\n"]
    )


SMI_VALUES = {
    "power_mw": 28070, "energy_mj": 123456789, "sm_clock_mhz": 1410, "mem_clock_mhz": 6251, "temperature_c": 34,
    "utilization": 57, "memory_used": 706740224, "power_limit_mw": 72000, "clock_event_reasons": 4,
}  # fmt: skip
"""What `smi_page` says, in the units of `telemetry`."""
