"""The table `jobs`: who had which GPU, from when to when; and its codes."""

from __future__ import annotations

from .columns import CLUSTER, IMPORT, Column, Table
from .outcomes import Code


class JobSource(Code):
    """Where a row of `jobs` comes from."""

    SACCT = "sacct", "Slurm's accounting (`whorl jobs import`)"
    TAG = "tag", "a tag of a prolog or epilog (`whorl jobs tag`)"
    CSV = "csv", "a file of allocations (`whorl import`)"
    SIMULATED = "simulated", "an invented job on a simulated fleet (`whorl demo`)"


class GpuFrom(Code):
    """How the GPU of a row of `jobs` is known. None of them takes an index for another."""

    TAG = "tag", "a tag read its UUID on the node"
    WHOLE_NODE = "whole node", "the job had as many GPUs as its nodes have: all; the store knew them when it began"
    FILE = "file", "the imported file names it"


class TagState(Code):
    """The state of a job of which only tags are known."""

    RUNNING = "RUNNING", "it has begun"
    ENDED = "ENDED", "its epilog ran; how it came out is not known"
    LOST = "LOST", "it has no epilog; it ended at `ended` at the latest: the node booted or the next job had the GPU"


JOBS = Table(
    "jobs",
    "an allocation of a GPU to a job, or of a node where its GPUs are not known, as one import found it; an allocation "
    "that changed has the rows of a later import beside its old ones, and the view `jobs_now` has the newest",
    (
        CLUSTER,
        Column("allocation", "VARCHAR", "", "identity of the allocation; a job that was requeued has several"),
        Column("job_id", "VARCHAR", "", "the job, as scheduler commands take it: 4242, of an array 4242_7"),
        Column("raw_id", "VARCHAR", "", "the number that the job itself sees; joins with `runs.job_id`"),
        Column("restart", "BIGINT", "", "how often it was requeued before; NULL where unknown"),
        Column("user", "VARCHAR", "", "who; with --anonymise a pseudonym"),
        Column("account", "VARCHAR", "", "the account that pays; with --anonymise a pseudonym"),
        Column("partition", "VARCHAR", "", "partition or queue"),
        Column("qos", "VARCHAR", "", "quality of service"),
        Column("state", "VARCHAR", "", "the scheduler's state, as COMPLETED; of tags: RUNNING, ENDED, LOST"),
        Column("exit_code", "BIGINT", "", "exit status of the job; NULL while it runs"),
        Column("exit_signal", "BIGINT", "", "the signal that ended it; 0: none"),
        Column("submitted", "TIMESTAMP", "UTC", "when it was submitted, or requeued"),
        Column("eligible", "TIMESTAMP", "UTC", "when it could have begun; it waited from then to `began`"),
        Column("began", "TIMESTAMP", "UTC", "when it began"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended; NULL while it runs, or if that is not known"),
        Column("node", "VARCHAR", "", "the node"),
        Column("gpu", "VARCHAR", "", "the GPU or MIG instance, as in `gpus`; NULL where not known"),
        Column("gpu_from", "VARCHAR", "", "how the GPU is known, a code; NULL where it is not"),
        Column("gpu_type", "VARCHAR", "", "the type that was allocated, in the scheduler's words: v100, 1g.10gb"),
        Column("share", "DOUBLE", "", "which part of the GPU it had: 1 is all; NULL where unknown (shards, MPS)"),
        Column("node_gpus", "BIGINT", "", "how many GPUs of the node this row is: 1 if `gpu` is known; NULL: unknown"),
        Column("job_gpus", "BIGINT", "", "how many GPUs the whole job had"),
        Column("job_nodes", "BIGINT", "", "how many nodes the whole job had"),
        Column("time_limit_s", "BIGINT", "s", "the longest it may run; NULL: no limit, or unknown"),
        Column("requested", "VARCHAR", "", "what it asked for, in the scheduler's words (ReqTRES)"),
        Column("allocated", "VARCHAR", "", "what it got, in the scheduler's words (AllocTRES)"),
        Column(
            "job_energy_j",
            "BIGINT",
            "J",
            "energy of the whole job as the scheduler counted it, which jobs on one node count twice; NULL: none, or 0",
        ),
        Column("tag", "VARCHAR", "", "`allocation` of the tag that gave the GPU; `jobs_now` leaves that tag out"),
        Column("source", "VARCHAR", "", "where the row comes from, a code"),
        Column("recorded", "TIMESTAMP", "UTC", "when it was stored; of an allocation's records the newest counts"),
        IMPORT,
    ),
    sorted_by=("gpu", "began"),
    key=("cluster", "allocation", "recorded"),
)
