"""Every option of every command beside every other: an answer or one clear sentence, never a traceback.

A call is a command's usual words with one or two options more, in this process. A new command or option needs a row
below: its values, the first of which works.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import click
import pytest
from click.testing import CliRunner

import whorl
from whorl.cli import cli
from whorl.tests.burst_files import write_files
from whorl.tests.chain_log import chain_log
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.harness import Copies
from whorl.tests.measured_sweep import sweep
from whorl.tests.sizes import is_all, is_long, sample

pytestmark = pytest.mark.usefixtures("stores_are_copied")

STATUSES = {0, 1, 2, 3, 4, 5, 6, 130, 141}
"""What `whorl --help` documents."""
REFUSALS = STATUSES - {0, 1, 6}
"""Those that a sentence explains. 6 is a report of what was measured and what failed."""

# Values that are tried alone, by the type of the option.
HOSTILE = {
    "date": ["0001-01-01T00:00+14:00", "9999-12-31T23:59-14:00"],
    "directory": ["{world}/jobs.txt"],
    "file": ["{world}"],
    "float": ["nan", "inf"],
    "float range": ["nan", "inf"],
    "integer": ["-1"],
    "integer range": ["99999999999999999999"],
    "path": ["{world}"],
    "text": ["a'b"],
    "time": ["0", "99999999999999w"],
}


def tried(line: str) -> dict[str, list[str]]:
    """The values of each option in a line such as `a b --x 1 2`; the words before all options are those of ""."""
    option, table = "", dict[str, list[str]]()
    for word in shlex.split(line):
        if word.startswith("--"):
            option = word
        table.setdefault(option, [])
        if option != word:
            table[option].append(word.removeprefix("\\"))
    return table


COMMON = tried(r"""
    --account physics --after 2026-11-10 --backend simulated auto cuda --before 2026-11-10 --budget 200h
    --campaign nightly "no such" --cluster simulated-V100-1 elsewhere --deadline 2d
    --fault slow_memory=5% lost lost=3% 1 9 --fleet {world}/fleet.toml --gpu c001-1/0 c001 --gpus 4 1 7
    --host 127.0.0.1:1 --interval 2 100ms --job 5 6 404 --keep 30d --locality-penalty 1.7 --max-age 10d
    --model V100 H100 --neighbours idle busy --node c001-1 n01 --on here here,here dask://x x slurm,there
    --output {here}/output --partition batch other --population normal --program whorl "module run 'whorl"
    --replicates 30 --option \\--exclusive \\--wrap=x --seed 3 0 --settings {world}/energy.toml
    --setup "module load cuda" --since 2026-11-02 30d --socket {here}/engine --start-up 1min
    --store {store} {world}/empty {world}/undated {here}/none --suite quick full --template {world}/template
    --time-zone Europe/Berlin Atlantis --timeout 60s --until 2026-11-28 1d --url http://127.0.0.1:1/metrics
    --workers 2 --workload sgemm bert
""")


@dataclass(frozen=True)
class Verb:
    """How a command is tried."""

    usual: str
    """The usual call."""
    tries: str = ""
    """The values of those of its options that mean something else than in COMMON; arguments go together by bars."""
    costly: bool = False
    """It is tried in the long form only, and there with one option at a time."""
    writes: bool = False
    """Its store is a copy for each call."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """What else an option needs: other options, or OUT for one of the usual call that is left out."""
    never: Mapping[str, str] = field(default_factory=dict)
    """Options that have no call with status 0 here, and why; "*" where that may be all."""

    @cached_property
    def base(self) -> dict[str, str | None]:
        """The usual call by option, None for a flag; "" stands for the arguments, separated by bars."""
        return called(self.usual)

    @cached_property
    def values(self) -> dict[str, list[str]]:
        return tried(self.tries)

    @cached_property
    def beside(self) -> dict[str, dict[str, str | None]]:
        return {option: called(line) for option, line in self.needs.items()}


def called(line: str) -> dict[str, str | None]:
    """The value of each option of a line, None for a flag."""
    return {option: "|".join(words) if words else None for option, words in tried(line).items()}


OUT = "OUT"
STORE = "--store {store}"
NODE = "--fleet {world}/fleet.toml --node n01 --gpus OUT"
PUBLISHED = "--as-published pal-sc24 --profiles {world}/profiles --nodes OUT --gpus-per-node OUT"
SIMULATED = "--store {store} --backend simulated --gpus 1"
TUNED = f"gemm-fp32 {SIMULATED} --max-slowdown 5% --trials 3 --suite quick --sweep OUT"
STRESSED = "--backend simulated --gpus 1 --trials 3 --sweep OUT --max-slowdown OUT"
TUNED_BY = ("backend", "gpus", "knob", "model", "resume", "safe", "seed", "store", "suite", "trials", "warm-start")
PLACE = {"--workers": "--on here"}
WORKERS = {"--account": "needs workers of Slurm"}
ACCOUNTING = "needs the accounting of Slurm"
ENGINE = "needs an engine of DCGM"
PROBED = r"""
    launch power-square|idle nonsense
    --cool-down 5s --duty 0.3 0.99999 --gpu 0 c001-1/0 --input zeros nonsense --input-seed 2 --interval 1s
    --knobs {world}/knobs.json {world}/sweep.csv {here} --lock-clock 1200 1 -5 --model V100 A100 --node n01 c001-1
    --period 0.1s --power-limit 200 1 --precision 5 100 --repeats 3 20 --start-temperature 60 -300 --time-limit 1s
"""
CAMPAIGN = "launch launch|idle nonsense --nodes n[01-02] n[ x"
REPLAY = r"""
    --alpha 0.5 0 --asleep-power 10 --backward 0.5 --foreground 0.9 --deadline-slack 1.5 --failures {world}/failures.csv
    --burst BERT={world}/plan.json BERT={world}/jobs.txt BERT --class *=none BERT=sgemm *=sgemm BERT
    --curves {world}/curves.csv {world}/jobs.txt --gpu-idle 50 --gpu-power 250 --gpus-per-node 8 4 3
    --knowledge none estimate exact --knowledge-error 1 --migration-cost 30 --mtbf 100 --node-power 760 --nodes 3 1 2
    --pair-at-least 1.2 --pairs {world}/pairs.csv {world}/jobs.txt --plot {here}/plot.html {here}/no/plot.html
    --policy packed pal,pm-first all x las eaco absent:Mine help --preemption-cost 30 --processors-per-gpu 2
    --profiles {world}/profiles {world}/empty --regimes {world}/regimes.json {world}/jobs.txt --repair 1 --round 60
    --scheduler fifo las,srtf all --seed 5 --seeds 2 --sleep-after 60
    --trace {world}/trace.csv {world}/jobs.txt {world}/template --trace-format csv swf x --wake 30 --workers 1
"""
ADVISE = """
    --and c001-2 x[ --cluster-nodes 8 0 --hard 1.2 --log {world}/log.csv {world}/jobs.txt --max-share 10% 100% 0
    --nodes {world}/hosts --soft 1.01 --time 12h x
"""

VERBS = {
    "demo": Verb(
        "--gpus 1 --fault 0 --out {here}/demo",
        "--out {here}/demo {world}/jobs.txt --suite quick --gpus 1 2",
        costly=True,
    ),
    "demo sample": Verb("{here}/files --gpus 4", "{here}/files {world}/jobs.txt"),
    "doctor": Verb(""),
    "man": Verb(""),
    "probe list": Verb(""),
    "probe run": Verb(
        f"launch {SIMULATED}",
        PROBED,
        writes=True,
        needs={
            **dict.fromkeys(("--exclusive", "--fleet", "--gpu", "--node"), NODE),
            **dict.fromkeys(("--duty", "--period"), "power-square"),
            **dict.fromkeys(("--input", "--input-seed"), "gemm-fp32"),
            "--fault": "--seed 9",
            "--knobs": "stress",
            "--until-wrong": "soak --time-limit 1s",
        },
    ),
    "probe prolog": Verb("--backend simulated --gpus 2", "--gpus 1 2"),
    "tune": Verb(
        "--sweep {world}/sweep.csv --max-slowdown 5%",
        r"""
        gemm-fp32 nonsense --across batch --command true "'" --knob n=1024,2048 n=x x --max-latency 20 16ms 0
        --max-slowdown 5% 0 5 --resume {here}/trials {here} --stress power spread
        --sweep {world}/sweep.csv {world}/trace.csv {world}/template --trials 3 4 --unit-of-work 10
        --warm-start {world}/start.csv {world}/sweep.csv {here}
        """,
        writes=True,
        needs=dict.fromkeys(("", *(f"--{name}" for name in TUNED_BY)), TUNED)
        | {"--max-latency": "--max-slowdown OUT", "--stress": STRESSED},
        never=dict.fromkeys(("--command", "--gpu", "--timeout", "--unit-of-work"), "needs a GPU"),
    ),
    "campaign plan": Verb(f"launch {STORE}", CAMPAIGN, writes=True),
    "campaign run": Verb(
        f"launch {STORE} --once", f"{CAMPAIGN} --max-pending 1 --patience 1s --settle 1s --tries 2", writes=True
    ),
    "campaign status": Verb(STORE, '--campaign weekly "no such"'),
    "campaign render": Verb(
        "launch --scheduler slurm", r"""launch nonsense --nodes n01 "x y" --option \\--exclusive "a'b" """
    ),
    "campaign doctor": Verb(f"{STORE} --here", "--nodes n01 --wait 1s", writes=True),
    "campaign pack": Verb("{here}/whorl.tgz", "{here}/whorl.tgz {here}/none/whorl.tgz {here}", costly=True),
    "collect": Verb(
        f"{STORE} --backend simulated --duration 0.2 --interval 0.1 --node n1",
        "--backend simulated nvml prometheus x --duration 0.2 0.1 --durable tick 1s --hung 1s --interval 0.1 50ms"
        " --slow-interval 1s",
        writes=True,
        never=dict.fromkeys(("--host", "--socket", "--job"), ENGINE) | {"--url": "needs an exporter of metrics"},
    ),
    "import": Verb(
        f"{{world}}/table.csv {STORE} --map ms=time:ms",
        """
        {world}/table.csv {world}/smi.csv {world}/table.csv|{world}/smi.csv {world}/template
        --at "2026-11-23 14:05:00" x --every 1 --header uuid,app,ms a --layout {world}/layout.yaml
        --ranks {world}/ranks.csv --map ms=time:ms ms=power:W ms --unit ms ms=s x
        """,
        writes=True,
        needs={"--header": "{world}/bare.csv"},
        never=dict.fromkeys(("--job", "--layout", "--ranks"), "needs a timeline: tests/cli/test_timelines.py"),
    ),
    "jobs import": Verb(
        f"{STORE} --log {{world}}/jobs.txt --gpus-per-node 4",
        "--log {world}/jobs.txt {world}/template --gpus-per-node 4 n[01-02]=8 n[ --tags {here}",
        writes=True,
        needs={"--since": "--log OUT", "--until": "--log OUT --since 2026-11-02"},
        never={"--since": ACCOUNTING, "--until": ACCOUNTING},
    ),
    "jobs idle": Verb(STORE, '--user alice "" --at-least 1s 0s --price 2.5 -1'),
    "jobs chain": Verb(
        "--script {world}/train.sbatch --once --folder {here}/chain",
        r"""
        --cost 0.5 -1 --folder {here}/chain {world}/jobs.txt --patience 1s --policy reactive lead6 x
        --option \\--time=1 "a'b" --script {world}/train.sbatch {world}/jobs.txt {here} --until done 3 7d x
        """,
    ),
    "jobs chain-study": Verb(
        "--log {world}/log.csv --policy reactive,average",
        """
        --as-published mirage --cost 0.5 0 --cluster-nodes 4 1 0 --gpus-per-node 4
        --log {world}/log.csv {world}/jobs.txt {world}/trace.csv --nodes 2 5 --policy average reactive,p75 x
        --samples {here}/samples.csv {here} --seed 1 --test-from 2022-11-02 2023-11-02 x --time-zone Europe/Berlin x
        """,
        needs={"--samples": "--as-published mirage"},
        never={"--cost": "learns from 500 waits, and the log has fewer"},
    ),
    "jobs wait": Verb("--time 1-00", "--nodes 8 0 --time 1-00 UNLIMITED x"),
    "jobs show": Verb(STORE, "--fleet {store} {here}/none"),
    "jobs tag": Verb("begin {here}", "begin|{here} end|{here} script"),
    "demo sim": Verb(
        f"{STORE} --gpus 2 --hours 0.01 --interval 10",
        """
        --began 2026-11-25T00:00:00 9999-12-31T23:59:59 x --cluster other simulated-V100-1 --every 6h --hours 0.01 0
        --interval 10 --load gemm-fp32 mixed x --runs 2
        """,
        writes=True,
        needs=dict.fromkeys(("--runs", "--every"), "--runs 2 --hours OUT --interval OUT") | {"--fault": "--seed 9"},
    ),
    "verdicts": Verb(STORE, costly=True, writes=True, needs=PLACE, never=WORKERS),
    "explain": Verb(f"c001-1/0 {STORE}", "c001-1/0 c001 x"),
    "verdicts fingerprint": Verb(STORE, costly=True, writes=True, needs=PLACE, never=WORKERS),
    "check": Verb(
        SIMULATED,
        "--critical 20 1 --gpus 1 2 --seed 1 3 --warning 2",
        costly=True,
        writes=True,
        never={"--fault": "the store knows these GPUs without it: what is found now is unknown"},
    ),
    "verdicts plan": Verb(STORE, "--budget 30min --probe launch nonsense --threshold 5 100"),
    "verdicts diff": Verb(f"{STORE} --before 2026-11-10 --after 2026-11-10"),
    "dashboard": Verb(
        f"{STORE} --listen 127.0.0.1:99999",
        "--listen 127.0.0.1:99999 x --prefix /x/ --sql-memory 200 --sql-seconds 5 --token-file {world}/template",
        never={"*": "serves until it is stopped: no address here can be listened at"},
    ),
    "report": Verb(f"{STORE} --out {{here}}/r.html", "--out {here}/r.html {here}/none/r.html", costly=True),
    "verdicts variability": Verb(f"{STORE} --replicates 100", "--replicates 100 0"),
    "energy": Verb(STORE, needs=PLACE, never=WORKERS),
    "energy reconcile": Verb(STORE, needs=PLACE, never=WORKERS),
    "energy excess": Verb(STORE, needs=PLACE, never=WORKERS),
    "energy calibrate": Verb(STORE),
    "energy quote": Verb(
        f"{STORE} --job 5",
        '--cap 60% 0 "420 W" --time 2h',
        needs={"--workload": "--job OUT"}
        | dict.fromkeys(("--gpus", "--model", "--time"), "--job OUT --workload gemm-fp32"),
    ),
    "advise": Verb(
        f"{STORE} --workload sgemm --no-scheduler --replicates 30",
        ADVISE,
        needs={
            "--and": "--format exclude",
            "--nodes": "--no-scheduler OUT",
            "--output": "--format exclude --no-scheduler OUT",
        },
        never={"--output": "needs a scheduler that knows the partition"},
    ),
    "advise apply": Verb(
        f"5 {STORE} --workload sgemm --dry-run",
        "5 x --max-delay 10min x --wait 5 x",
        never={"*": "needs a job that waits in Slurm"},
    ),
    "advise power-plan": Verb(
        f"{STORE} --workload sgemm --hosts c001-[1-2]",
        "--budget 4.2kW 900 x --hosts c001-[1-2] x[ --limit 250",
        never={"*": "needs runs under several power limits: tests/cli/test_power_plan.py"},
    ),
    "advise burst": Verb(
        "--profile {world}/layer_times.csv --network {world}/network.json --batch 8 --gpus 4",
        """
        --bandwidth 1e5 --batch 8 4,8 x --conv-traffic published --gpus 4 1,8 6 --hosts c001-[1-2] x[
        --limit 1.5,data-parallel 0 --model small V100 --network {world}/network.json {world}/trace.csv
        --profile {world}/layer_times.csv {world}/trace.csv --rules published --store {store} {world}/empty
        """,
        needs={
            "--cluster": STORE,
            "--hosts": f"{STORE} --workload sgemm",
            "--store": "--workload sgemm",
            "--workload": STORE,
        },
    ),
    "advise spb": Verb(
        f"{STORE} --workload sgemm --gpus 4", "--backward 0.67 0.999 --hosts c001-[1-2] x[ --layers 16 0"
    ),
    "replay": Verb(
        "--trace {world}/trace.csv --nodes 3 --gpus-per-node 8 --workers 1",
        REPLAY,
        needs={
            "--as-published": PUBLISHED,
            "--class": STORE,
            "--cluster": f"{STORE} --class *=sgemm",
            "--profiles": PUBLISHED,
            "--regimes": "--trace {world}/regimes.csv",
            "--store": "--class *=sgemm",
        },
    ),
    "export prometheus": Verb(f"{STORE} --once", "--listen 127.0.0.1:0 x"),
    "export otlp": Verb(
        f"{STORE} --once --endpoint http://127.0.0.1:1",
        "--endpoint http://127.0.0.1:1 x",
        never={"*": "needs a collector of OpenTelemetry"},
    ),
    "sql": Verb(f"'select 1' {STORE}", "'select 1' 'select * from telemetry limit 3' x"),
    "schema": Verb("", "runs x"),
    "store status": Verb(STORE),
    "store compact": Verb(f"{STORE} --offline", writes=True, needs=PLACE, never=WORKERS),
    "store prune": Verb(f"{STORE} --keep 30d --offline", writes=True),
    "store files": Verb(STORE, "telemetry late|runs x"),
    "store retire": Verb(f"c001-1/0 {STORE}", "c001-1/0 c001 x", writes=True),
    "store upgrade": Verb(f"{STORE} --offline", writes=True),
    "store register": Verb(
        f"{STORE} --delta",
        "--forget delta x",
        costly=True,
        writes=True,
        needs={"--forget": "--delta OUT"},
        never={"--forget": "its store is in no log"},
    ),
    "store merge": Verb(
        "{store} --into {here}/into",
        "{store} {store}|{world}/empty {world}/template --into {here}/into {world}/jobs.txt {store}",
        writes=True,
    ),
}


def commands(command: click.Command = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something itself, by its words."""
    subcommands = dict(command.commands) if isinstance(command, click.Group) else {}
    if path and (not subcommands or getattr(command, "invoke_without_command", False)):
        yield " ".join(path), command
    for name, subcommand in subcommands.items():
        yield from commands(subcommand, (*path, name))


COMMANDS = dict(commands())


@dataclass(frozen=True)
class PairKey:
    """A key of an option of KEY=VALUE, such as `--set period`."""

    spelling: str
    type: click.ParamType[Any]


def keys(parameter: click.Parameter) -> dict[str, PairKey]:
    """The keys of an option of KEY=VALUE, as if each was an option; none of another option."""
    tables = getattr(parameter, "tables", {})
    return {
        f"--{key}": PairKey(f"{parameter.opts[0]} {table}{':' * bool(table)}{key}", row.type)
        for table, rows in reversed(tables.items())  # of backends that take the same, the first one
        for key, row in rows.items()
    }


def parameters(name: str) -> dict[str, click.Parameter | PairKey]:
    """A command's options by their long spelling, with keys like options, and its arguments as ""."""
    parameters: dict[str, click.Parameter | PairKey] = {}
    for parameter in COMMANDS[name].params:
        if isinstance(parameter, click.Argument):
            parameters[""] = parameter
        elif "" not in getattr(parameter, "tables", {}):
            parameters[parameter.opts[0]] = parameter
        parameters |= keys(parameter)
    return parameters


def spelled(name: str, option: str, value: str | None) -> list[str]:
    """The words of an option with its value."""
    parameter = parameters(name)[option]
    if isinstance(parameter, PairKey):
        flag, _, key = parameter.spelling.partition(" ")
        return [flag, f"{key}={value}"]
    return [option] if value is None else [option, value]


def values(name: str, option: str) -> list[str | None]:
    """What an option is tried with: None for a flag."""
    parameter = parameters(name)[option]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return [None]
    listed = VERBS[name].values.get(option) or COMMON.get(option)
    if listed is None and parameter.type is click.BOOL:
        listed = ["yes", "no", "perhaps"]
    if listed is None and isinstance(parameter.type, click.Choice):
        listed = list(parameter.type.choices)
    assert listed, f"give `whorl {name} {option}` values in tests/contract/test_options.py"
    return list(listed)


SCRIPTS = {
    "scontrol": """case "$*" in
  *ping*) echo "Slurmctld(primary) at login is UP" ;;
  *config*) echo "ClusterName = simulated-V100-1" ;;
  *partitions*) echo "PartitionName=batch Default=YES MaxTime=1:00:00 State=UP" ;;
  *) for n in n01 n02; do echo "NodeName=$n Gres=gpu:v100:4 NodeHostName=$n State=IDLE Partitions=batch"; done ;;
esac""",
    "squeue": "exit 0",
    "sbatch": "cat > /dev/null; echo 101",
}
FILES = {
    "trace.csv": "job_id,num_gpus,submit_time,duration,model\n"
    + "".join(f"{n},{1 + n % 4},{40 * n},{600 + 37 * (n % 7)},{'BERT' if n % 3 else 'GPT2'}\n" for n in range(20)),
    "failures.csv": "node,down_s,up_s\nn0,100,900\n",
    "jobs.txt": "JobIDRaw|JobID|Cluster|User|Account|Partition|QOS|State|ExitCode|Submit|Eligible|Start|End|Timelimit"
    "|NNodes|NodeList|ReqTRES|AllocTRES|ConsumedEnergyRaw\n"
    + "".join(
        f"{n}|{n}|simulated-V100-1|alice|physics|batch|normal|COMPLETED|0:0|{begin}|{begin}|{begin}|{begin + 240}|60"
        "|1|c001-1|gres/gpu=4|cpu=4,gres/gpu=4,node=1|90000\n"
        for n, begin in ((5, 1795737600), (6, 1795737900))
    ),
    "bare.csv": "".join(f"GPU-77686f72-6c00-4000-8000-{n:012x},sgemm,{100 + n}.5\n" for n in range(4)),
    "curves.csv": "application,placement,nodes,gpus,local_batch,step_s,sync_s\n"
    + "".join(f"other,{gpus},1,{gpus},{batch},{batch / 8},0.1\n" for gpus in (1, 2) for batch in (8, 16)),
    "energy.toml": 'zone = "DE"\npue = 1.2\n',
    "fleet.toml": 'nodes = "n[01-02]"\ngpus_per_node = 1\n',
    "hosts": "c001-[1-2]\n",
    "train.sbatch": "#!/bin/bash\n#SBATCH -t 10\ntrue\n",
    "log.csv": chain_log(7),
    "layout.yaml": "dp_size: 2\npp_size: 1\ntp_size: 1\n",
    "pairs.csv": "job_a,job_b,a_share_of_solo,b_share_of_solo\n"
    + "".join(f"{pair},0.8,0.8\n" for pair in ("BERT,BERT", "BERT,GPT2", "GPT2,GPT2")),
    "plan.json": json.dumps(
        {
            "schema": "whorl.advise.burst/1",
            "rows": [
                {
                    "gpus": n,
                    "batch": 32,
                    "limit": 2.0,
                    "time_ms": 9.0,
                    "data_parallel_ms": 10.0,
                    "stages": [[1, 0.4], [n, 0.6]],
                }
                for n in (2, 3)
            ],
        }
    ),
    "ranks.csv": "rank,uuid\n0,GPU-3740efcd\n",
    "regimes.csv": "job,model,batch,gpus,epochs,isolated_s,arrival_s\n0,m,16,1,4,400,0\n1,m,16,2,4,400,50\n",
    "regimes.json": json.dumps({"0": [[2, 16, 100], [2, 32, 50]], "1": [[4, 16, 100]]}),
    "start.csv": "power_limit,time_s,energy_j\n100,3,300\n200,2,350\n300,1.8,400\n",
    "knobs.json": '{"setting": {"fp32": 4, "sm_clock_mhz": 1200.0}}',
    "sweep.csv": sweep(),
    "smi.csv": "timestamp, uuid, power.draw [W]\n2026/11/20 10:00:00.000, GPU-3740efcd, 250.0 W\n",
    "table.csv": "uuid,app,ms\n"
    + "".join(f"GPU-77686f72-6c00-4000-8000-{n:012x},sgemm,{100 + n}.5\n" for n in range(4)),
    "template": "#!/bin/sh\n#SBATCH --gpus=4\n",
}


@pytest.fixture(scope="module")
def world(built_once: BuiltOnce) -> Path:
    """Input files, programs in the place of Slurm, and stores: empty, of undated runs, of eight GPUs and their jobs."""

    def build(folder: Path) -> None:
        whorl.Store.create(folder / "empty")
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "profiles").mkdir()
        write_files(folder)
        for name in ("bert", "pagerank", "resnet"):
            (folder / "profiles" / f"{name}.csv").write_text("exp,perf\n" + f"{name},1.0\n{name},1.1\n{name},1.3\n")
        (folder / "bin").mkdir()
        for name, script in SCRIPTS.items():
            (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / "bin" / name).chmod(0o755)
        fleet, fixed = ("--store", str(folder / "store")), ("--gpus", "8", "--set")
        probed = ("--backend", "simulated:gpus=1", "--campaign", "nightly", "--cluster", "simulated-V100-1")
        for words in (
            ("demo", "sim", *fleet, *fixed, "began=2026-11-01", "--set", "runs=3", "--set", "every=7d"),
            ("demo", "sim", *fleet, *fixed, "began=2026-11-27", "--set", "hours=0.2", "--set", "interval=10"),
            ("probe", "run", "gemm-fp32", "stream-triad", *fleet, *probed, "--suite", "quick"),
            ("jobs", "import", *fleet, "--log", str(folder / "jobs.txt"), "--set", "gpus-per-node=4"),
            ("campaign", "run", "launch", *fleet, "--campaign", "weekly", "--once"),
            ("import", "--store", str(folder / "undated"), "--map", "ms=time:ms", str(folder / "table.csv")),
        ):
            result = CliRunner().invoke(cli, words, env={"PATH": f"{folder / 'bin'}:/usr/bin:/bin"})
            assert result.exit_code == 0, f"{words}: {result.output}"

    return built_once("options", build)


@dataclass
class Caller:
    """Calls commands, each in a new folder; keeps what was wrong and which options had an answer."""

    world: Path
    copies: Copies
    folder: Path
    calls: int = 0
    faults: list[str] = field(default_factory=list)
    answered: set[tuple[str, str]] = field(default_factory=set)

    def call(self, name: str, options: Mapping[str, str | None]) -> int:
        """Run a command with these options over its usual ones; its exit status, -1 for a fault."""
        self.calls += 1
        here = self.folder / f"call-{self.calls}"
        here.mkdir()
        verb = VERBS[name]
        chosen = dict(verb.base)
        for option in options:
            chosen |= verb.beside.get(option, {})
        chosen = {option: value for option, value in {**chosen, **options}.items() if value != OUT}
        world = self.copies.next() if verb.writes else self.world
        words = name.split()
        for option, value in sorted(chosen.items(), key=lambda pair: not pair[0]):  # arguments first
            text = None if value is None else value.format(world=world, here=here, store=world / "store")
            words += spelled(name, option, text) if option else (text or "").split("|")
        os.chdir(here)
        result = CliRunner().invoke(cli, words)
        complaint = wrong(name, result.exit_code, result.exception, result.stdout, result.stderr)
        if complaint:
            self.faults.append(f"whorl {' '.join(words)}: {complaint}")
        if result.exit_code == 0:
            self.answered |= {(name, option) for option in chosen}
        os.chdir(self.folder)
        shutil.rmtree(here, ignore_errors=True)  # a probe of `check` that was late may still write there
        return -1 if complaint else result.exit_code


def wrong(name: str, status: int, exception: BaseException | None, output: str, errors: str) -> str:
    """What is wrong with how a command ended; nothing if all is well."""
    if exception is not None and not isinstance(exception, SystemExit):
        return f"{type(exception).__name__}: {exception}"
    if "Traceback" in output + errors:
        return "a traceback is printed"
    if status not in ({0, 1, 2, 3} if name == "check" else STATUSES):
        return f"exit status {status} is not documented"
    if status in REFUSALS and name != "check":
        if not any(line.startswith(("whorl: ", "Error: ")) for line in errors.splitlines()):
            return f"status {status} without a sentence: {errors[-300:]!r}"
        if len(errors) > 5000:
            return f"an error of {len(errors)} characters"
    return ""


@pytest.fixture(scope="module")
def copies(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    return Copies(world, tmp_path_factory.mktemp("world"))


@pytest.fixture
def caller(world: Path, copies: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Caller]:
    """A caller whose commands find no scheduler but ours, and nothing of this user."""
    for variable in [name for name in os.environ if name.startswith(("SLURM", "WHORL_STORE", "CUDA_VISIBLE"))]:
        monkeypatch.delenv(variable)
    home, calls = tmp_path / "home", tmp_path / "calls"
    home.mkdir()
    calls.mkdir()
    for variable in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(variable, str(home))
    monkeypatch.setenv("WHORL_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{world / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(tempfile, "tempdir", str(calls))
    monkeypatch.chdir(calls)
    yield Caller(world, copies, calls)
    assert not list(home.iterdir())


@pytest.mark.parametrize(
    "name",
    [
        *sample([name for name, verb in VERBS.items() if not verb.costly], short=14),
        *(pytest.param(name, marks=pytest.mark.long) for name, verb in VERBS.items() if verb.costly),
    ],
)
def test_options(name: str, caller: Caller) -> None:
    """Each option with an answer, some values that a command may refuse, and some pairs of options.

    With --all each value is tried alone, and each option beside each other one.
    """
    options = [option for option in parameters(name) if option or VERBS[name].base.get("") or "" in VERBS[name].values]
    usual = {option: values(name, option)[0] for option in options}
    strange = [(option, value) for option in options for value in (*values(name, option)[1:], *hostile(name, option))]
    pairs = list(combinations(options, 2))
    draw = Random(name)
    draw.shuffle(pairs)
    if is_all():
        together = 1
    else:  # what refuses a value is a type of option, which all commands share
        together = len(options) if VERBS[name].costly else 2
        strange, pairs = sample(strange, short=0) if is_long() else [], pairs[:1]
        if VERBS[name].costly:
            strange, pairs = [], []
    if is_long():
        for begin in range(0, len(options), together):
            answer(caller, name, usual, options[begin : begin + together])
    chosen: dict[str, list[str | None]] = {option: [value] for option, value in usual.items()}
    for option, value in strange:
        if caller.call(name, {option: value}) in (0, 1):
            chosen[option].append(value)
    for pair in pairs:
        caller.call(name, {option: draw.choice(chosen[option]) for option in pair})
    assert not caller.faults, "\n".join(caller.faults)
    if is_long() and "*" not in VERBS[name].never:
        unanswered = {option for option in options if (name, option) not in caller.answered}
        assert unanswered <= set(VERBS[name].never)


def answer(caller: Caller, name: str, usual: Mapping[str, str | None], options: Sequence[str]) -> None:
    """Have an answer to each of these options: all in one call where they go together, else to each half of them."""
    if caller.call(name, {option: usual[option] for option in options}) != 0 and len(options) > 1:
        middle = len(options) // 2
        answer(caller, name, usual, options[:middle])
        answer(caller, name, usual, options[middle:])


def hostile(name: str, option: str) -> list[str | None]:
    """Values that an option of this type may not like; but not to run for ever."""
    if option == "--duration":
        return []
    return list(HOSTILE.get(parameters(name)[option].type.name, ()))


def test_every_command_is_here() -> None:
    assert set(VERBS) == set(COMMANDS)


NEWCOMER = ["demo", "import", "collect", "campaign", "verdicts", "explain", "advise", "energy", "report"]
NEWCOMER += ["dashboard", "sql", "doctor"]
MOST_OPTIONS = 220


def options_below(command: click.Command) -> set[str]:
    """The options of a command and of those below it, by name."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own_options = {
        option.opts[-1] for option in command.params if isinstance(option, click.Option) and not option.hidden
    }
    return own_options.union(*map(options_below, below))


def test_verbs_and_options_do_not_grow() -> None:
    """An option that several sub-verbs of a verb have counts once."""
    assert list(cli.commands)[: len(NEWCOMER)] == NEWCOMER
    assert len(cli.commands) <= 21
    options = {name: options_below(command) - {"--help"} for name, command in cli.commands.items()}
    assert sum(map(len, options.values())) + len({"--version"}) <= MOST_OPTIONS
