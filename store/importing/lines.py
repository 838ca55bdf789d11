"""The lines of a file, and whose they are where it has those of several hosts: pdsh, clush and srun write the name of
the host in front of each line, clush -b, dshbak and Ansible above the lines of each."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence

import polars as pl

from ...errors import InputError

HOST = "=host"
_LINES = re.compile("^.*$", re.MULTILINE)
_LABEL = r"^\s*([A-Za-z][A-Za-z0-9._-]*|[0-9]{1,6}):(?: |$)"
_OF_MESSAGES = ("error", "fatal", "info", "note", "warning")  # in front of what a tool says
_RULE = r"^-{4,}\s*$"
_ANSIBLE = r"^([A-Za-z0-9][A-Za-z0-9._-]*) \| [A-Z]+ \| rc=[0-9]+ >>\s*$"
_LABELLED = 0.9  # of the lines have a label, where a tool puts one in front of each


def written(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text that are not blank, each with its number. They are cut one by one: a text may be large."""
    for number, line in enumerate(_LINES.finditer(text), start=1):
        if (content := line[0]).strip():
            yield number, content


def csv_fields(line: str, delimiter: str = ",") -> list[str] | None:
    """The fields of a line of CSV, without blanks around them; None where its quotes are damaged."""
    try:
        fields = next(csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True))
    except (csv.Error, StopIteration):
        return None
    return [field.strip() for field in fields]


def tell_apart(lines: pl.DataFrame, file: str) -> pl.DataFrame:
    """Lines of `text` without what names their host, and `HOST`, NULL of lines that name none; unchanged where nobody
    wrote hosts.

    Raises InputError where srun numbered the lines of several tasks, whose hosts nobody knows.
    """
    first, text, host = lines["text"][0], pl.col("text"), pl.col(HOST)
    if re.match(f"{_RULE}|{_ANSIBLE}", first):
        rule = text.str.contains(_RULE)
        is_name = (rule.shift(1) & rule.shift(-1) & ~rule).fill_null(False)
        name = pl.coalesce(text.str.extract(_ANSIBLE, 1), pl.when(is_name).then(text.str.strip_chars()))
        lines = lines.with_columns(name.alias(HOST))
        beside = host.shift(1).is_not_null() | host.shift(-1).is_not_null()
        is_row = host.is_null() & ~(rule & beside)
        return lines.with_columns(host.forward_fill(), is_row.alias("=row")).filter("=row").drop("=row")
    label = re.match(_LABEL, first)
    if label is None or label[1].lower() in _OF_MESSAGES:
        return lines
    labelled = lines.with_columns(text.str.extract(_LABEL, 1).alias(HOST), text.str.replace(_LABEL, ""))
    hosts = labelled[HOST].drop_nulls()
    if len(hosts) < _LABELLED * len(lines):
        return lines
    names = hosts.unique(maintain_order=True)
    if names.str.contains("^[0-9]+$").any():
        if len(names) > 1:
            raise InputError(
                f"{file} has lines of {len(names)} tasks of srun ({', '.join(names[:3])}), and nothing says on which "
                "hosts they ran: write a file for each (srun --output=%N.log) and give each its --node"
            )
        return labelled.drop(HOST)
    return labelled


def by_host(text: str, file: str) -> list[tuple[str, str, Sequence[int]]]:
    """The host, the text and the numbers of the lines of each host in a text; "" where nobody wrote one, and no numbers
    where nothing was taken out. Raises InputError as `tell_apart` does."""
    first = next((line for _, line in written(text)), "")
    if not re.match(f"{_RULE}|{_ANSIBLE}|{_LABEL}", first):
        return [("", text, ())]
    lines = pl.DataFrame(list(written(text)), {"line": pl.Int64, "text": pl.String}, orient="row")
    apart = tell_apart(lines, file)
    if HOST not in apart.columns:
        apart = apart.with_columns(pl.lit("").alias(HOST))
    end = "\n" if text.endswith("\n") else ""
    return [
        (str(host or ""), "\n".join(rows["text"]) + end, rows["line"].to_list())
        for (host,), rows in apart.group_by(HOST, maintain_order=True)
    ]
