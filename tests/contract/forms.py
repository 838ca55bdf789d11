"""What is compared of answers that are no JSON: rows, series, sections. Each function takes what a verb printed."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from whorl.tests.contract.harness import Output, figures


def document(answer: Output) -> Any:
    """The JSON; None where nothing was printed."""
    return answer.json() if answer.stdout else None


def columns(answer: Output) -> Any:
    """Of `whorl schema` each column with its type and unit, by table, and the codes of columns."""
    schema = answer.json()
    return {
        "tables": {
            table["name"]: {column["name"]: _typed(column) for column in table["columns"]}
            for table in (*schema["tables"], *schema["views"])
        },
        "codes": {
            f"{codes['table']}.{codes['column']}": " | ".join(
                str(row.get("code", row.get("key"))) for row in codes["rows"]
            )
            for codes in schema["codes"]
        },
    }


def _typed(column: dict[str, Any]) -> str:
    return " ".join(filter(None, (column["type"], column["unit"])))


def sources(answer: Output) -> Any:
    """What `whorl doctor` looks at; whether it works is the machine's."""
    return [finding["what"] for finding in answer.json()["findings"]]


def planned(answer: Output) -> Any:
    """The plan without what follows the clock: chances fall with every hour, and with them the order of equal GPUs."""
    if not answer.stdout:
        return None
    plan = answer.json()
    reasons = sorted({gpu["why"] for gpu in plan["gpus"]})
    plan["gpus"] = {
        why: sorted(gpu["name"] or gpu["gpu"] for gpu in plan["gpus"] if gpu["why"] == why) for why in reasons
    }
    plan["commands"] = sorted((command["node"] or "", command["seconds"]) for command in plan["commands"])
    return plan


def checked(answer: Output) -> Any:
    """The check without the time that it took."""
    return {key: value for key, value in answer.json().items() if key != "seconds"}


def kept_up(answer: Output) -> Any:
    """What compacting or pruning did, without what follows the age of files: how many there are, and until when."""
    return {key: value for key, value in answer.json().items() if key not in ("before", "after", "until")}


def demonstrated(answer: Output) -> Any:
    """The demo without ids of runs: they follow from the campaign's name, which is the time of day."""
    demo = answer.json()
    for verdict in demo["verdicts"]:
        verdict["runs"] = len(verdict["runs"])
    return demo


def rows(answer: Output) -> Any:
    """The rows of CSV."""
    return answer.rows()


def lines(answer: Output) -> Any:
    """The lines that a program takes as they are: all but remarks and empty ones."""
    return [line for line in answer.stdout.splitlines() if line.strip() and not line.startswith("#")]


def status_only(answer: Output) -> Any:
    """Whether anything was printed: it is prose."""
    return bool(answer.stdout)


def markdown(answer: Output) -> Any:
    """Code in headings and in the first cell of each row of Markdown."""
    cells = [line.split("|")[1].strip() for line in answer.stdout.splitlines() if line.startswith("|")]
    headings = [line.strip("# ") for line in answer.stdout.splitlines() if re.match(r"#+ `?\w+`?$", line)]
    return {"headings": headings, "cells": [cell for cell in cells if not cell.startswith("-")]}


def manual(answer: Output) -> Any:
    """Sections of the manual page, and how many options it explains."""
    return {
        "sections": re.findall(r"^\.S[HS] (.*)$", answer.stdout, re.MULTILINE),
        "entries": answer.stdout.count("\n.TP"),
    }


def nagios(answer: Output) -> Any:
    """The word of the status, and of the performance data of a plugin's line the names and limits."""
    summary, _, performance = answer.stdout.partition("|")
    limits = {
        name: f"{unit};{limit_text}"
        for name, unit, limit_text in re.findall(r"'([^']*)'=[-.\d]*(\D*?);(\S*)", performance)
    }
    return {"word": summary.split()[:2], "limits": limits, "lines": answer.stdout.count("\n")}


def junit(answer: Output) -> Any:
    """Counts and names of the test cases."""
    return {
        "counts": dict(re.findall(r'\b(tests|failures|errors|skipped)="(\d+)"', answer.stdout)),
        "cases": re.findall(r'<testcase[^>]* name="([^"]*)"', answer.stdout),
    }


def series(answer: Output) -> Any:
    """Of each metric of a Prometheus page its type, its labels, and how many samples it has with which values.

    Of what the exporter says about its own work and its clock, no values.
    """
    return {
        family.name: {
            "type": family.type,
            "labels": sorted({label for sample in family.samples for label in sample.labels}),
            "values": figures([None if is_clock(family.name) else sample.value for sample in family.samples]),
        }
        for family in text_string_to_metric_families(answer.stdout)
    }


def is_clock(name: str) -> bool:
    """Whether a metric is about the exporter's own work, or is a time of its clock."""
    return re.fullmatch(r"whorl_(export|judged)_\w*seconds|whorl\.judged", name) is not None


def page(path: Path) -> Any:
    """Of a page its sections with the shapes of their tables, its figures by kinds of trace, and its long lists."""
    text = path.read_text(encoding="utf-8")
    body, _, _ = text.partition("<script")
    sections = [
        {
            "headings": len(re.findall(r"<h[23]", section)),
            "tables": [
                [len(re.findall("<tr>", table)), len(re.findall(r"<th[ >]", table))]
                for table in re.findall(r"<table.*?</table>", section, re.DOTALL)
            ],
        }
        for section in body.split("<section")[1:]
    ]
    traces = Counter(trace.get("type", "scatter") for figure in _packed(text, "figures") for trace in figure["data"])
    return {
        "sections": sections,
        "figures": len(_packed(text, "figures")),
        "traces": dict(sorted(traces.items())),
        "lists": len(_packed(text, "listings")),
        "network": re.findall(r"""(?:src|href)=["']?(https?://[^"' >]*)""", text),
    }


def _packed(text: str, name: str) -> list[Any]:
    """A part of a page that is kept as gzipped JSON."""
    match = re.search(rf'id="{name}">([^<]*)<', text)
    contents: list[Any] = json.loads(gzip.decompress(base64.b64decode(match[1]))) if match and match[1] else []
    return contents


def csv_files(folder: Path) -> Any:
    """The rows of each CSV file in a folder, plain or gzipped, by the file's name."""
    contents = {}
    for path in sorted(folder.iterdir()):
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
        contents[path.name] = [dict(row) for row in csv.DictReader(text.splitlines())]
    return contents
