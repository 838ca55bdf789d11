"""The store: table schemas, append-only writing, reading, SQL. docs/how-we-know/store.md draws it.

Which module does what, from what others use to what uses them (`make layers` keeps the order of the groups), and in
each group in the order in which a row passes through them:

    tables   schema            every table and column, with units; the number of the format
             formats           which formats this whorl reads, and the steps between them
             metrics           the metrics of a GPU, a row each: the columns of `telemetry` follow from them
             vocabulary        the codes in columns, and what each says
             names, instants, hostlist, configuration, events, power_sensors, node_power, exposition/
                               what rooms above share: GPUs and nodes, times, host lists, rows of `events`, what power
                               sensors see, how ipmitool spells the power of a node, pages of exporters
    system/  files, locks      files that appear whole, inside the store only; locks that end with their process
             processes, children, signals, network
    files    file_names        what the name of a file says: who wrote it, of which GPUs and times; its check sum
             parquet           one file: encoded, verified, read
             keys              which row of a key counts: compared, sorted, the newest taken
             journal_file      the blocks of a journal: written, read
             manifest          the GPUs of the files of a closed day
             replacing         numbered notes: which files readers leave out, as others came in their places in one
                               step; the process that replaces files; the table logs that still name replaced ones
    writers  telemetry_files   where readings go (telemetry/, late/, latest/); files joined to be written anew
             commits           rows of several tables: all or nothing
             sealing           a journal becomes files
             journal           rows that come one after another; a child process seals them
    readers  snapshot          the files and journals of one instant; as Arrow, and by days and groups of GPUs
             newest            the last values, followed
             views, windows    named queries; telemetry in the time of a run or job
             catalog           the views in whorl.duckdb
             sql               DuckDB; which statements may run, and the files that they need
    care     folder            what makes a folder a store: store.toml, and what it holds besides rows
             compaction, retention, upgrade
                               files joined; older telemetry as minutes; files of an older format
             derived           what analysis makes of the telemetry of a day, and whether it is still that of the day
             checking, status  what is wrong with its files; what it holds, and who writes
    store    `Store`: what rooms above need of all these
             merging           another store comes in
             table_logs        the tables as those of Delta and Iceberg, for other engines
    importing/                 files of other tools become rows
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store import Store

# Loaded on first use: who needs only the schemas does not load the code that reads and writes tables.
_LAZY = {"Store": ".store"}

__all__ = ["Store"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
