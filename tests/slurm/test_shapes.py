"""Jobs of random forms, with and without advice, on a real Slurm of two kinds of nodes: none is worse off with it.

Each form is submitted as its user wrote it, through each of the two filters of docs/slurm, and held and released by
`whorl advise apply`. What Slurm takes without advice it must take with it, and nothing may wait longer for it: the
cluster is idle. Slurm itself says what can start: `sbatch --test-only` with the same options, and the start of jobs.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from whorl.jobs.apply import ApplyOptions, ExclusionTrial, change_of
from whorl.jobs.formats import filter_file, largest_jobs
from whorl.jobs.slurm import Slurm as Client
from whorl.store.hostlist import compress, expand
from whorl.tests.sizes import sample
from whorl.tests.slurm.conftest import started
from whorl.tests.slurm.daemons import GPUS, Slurm, ensure_users, why_not

pytestmark = pytest.mark.slurm

NODES, V100 = 12, 8  # the others have A100
ISSUED = (
    "-N8 --gres=gpu:v100:4",
    "--gpus=v100:32",
    "--ntasks=12 --ntasks-per-node=1 --gpus-per-node=4",
    "-n12 --cpus-per-gpu=8 --gpus=12",
    "--gpus=12 --gpus-per-node=1",
    "--nodefile={folder}/every",
)
"""Forms that were once refused because of the advice on n03."""

Chooser = Callable[[random.Random], str]


def _number(option: str, *choices: object) -> Chooser:
    return lambda rng: f"{option}{rng.choice(choices)}"


SIZE: list[Chooser] = [
    lambda rng: f"-N{rng.randint(1, 13)}",
    lambda rng: f"-N{(least := rng.randint(1, 12))}-{rng.randint(least, 14)}",
    lambda rng: f"-n{rng.choice([1, 2, 3, 5, 7, 8, 11, 12, 16, 32, 64, 96])}",
    lambda rng: f"--gpus={rng.choice(['', '', 'v100:', 'a100:'])}{rng.choice([1, 2, 3, 5, 8, 11, 12, 16, 28, 32])}",
    _number("--gpus=", "v100:4,a100:4", "v100:1,a100:16", "v100:28"),
]
OTHER: list[Chooser] = [
    _number("--gres=", "gpu:1", "gpu:4", "gpu:v100:4", "gpu:a100:2", "gpu:v100:1,gpu:a100:1", "gpu", "none"),
    _number("--gpus-per-node=", 1, 2, 4, "v100:4", "a100:1", "v100:3"),
    _number("--gpus-per-task=", 1, 2, "v100:1", "a100:4"),
    _number("--gpus-per-socket=", 1, 2),
    _number("--ntasks-per-node=", 1, 2, 4, 8),
    _number("--ntasks-per-gpu=", 1, 2),
    _number("--ntasks-per-socket=", 1, 4),
    _number("--ntasks-per-core=", 1, 2),
    _number("--cpus-per-gpu=", 1, 2, 4, 8),
    _number("--mem-per-gpu=", 500, 1000, 2000),
    _number("--mem-per-cpu=", 200, 500, 2000),
    _number("--mem=", 0, 1000, 4000),
    _number("-c", 1, 2, 3, 8),
    _number("--mincpus=", 1, 4, 8),
    _number("--sockets-per-node=", 1, 2),
    _number("--extra-node-info=", "2:4:1", "1:2:1"),
    _number("--exclusive", "", "=user"),
    _number("--exclude=", "n01", "n03", "n01,n02", "n[04-06]", "n12"),
    _number("--nodelist=", "n03", "n01", "n[03-04]"),
    _number("--constraint=", "v100", "a100", "v100|a100", "[cab1*2&cab2*1]", "cab1"),
    _number("--prefer=", "v100", "cab2"),
    _number("--partition=", "batch", "urgent", "debug", "batch,urgent", "debug,batch"),
    _number("--array=", "1-3", "0-9%2"),
    _number("--dependency=", "singleton", "afterany:1"),
    _number("--distribution=", "block", "cyclic", "plane=2"),
    _number("--hint=", "nomultithread", "compute_bound"),
    _number("--nice=", 10),
    _number("--time=", 1, 10),
    _number("--switches=", 1, 2),
    _number("--begin=", "now"),
    _number("--signal=", "USR1@10"),
    _number("--tmp=", 0),
    *(_number(option, "") for option in ("--contiguous", "--spread-job", "--use-min-nodes", "--overcommit")),
    *(_number(option, "") for option in ("--oversubscribe", "--requeue", "--gres-flags=enforce-binding", "--no-kill")),
    _number("--gpu-bind=", "none", "closest"),
    _number("--reservation=", "kept"),
    _number("--licenses=", "tool:1"),
    _number("--core-spec=", 1),
    _number("--deadline=", "now+1hour"),
]


def shapes(number: int, seed: int) -> Iterator[list[str]]:
    """That many forms, always the same ones."""
    rng = random.Random(seed)
    for _ in range(number):
        sizes = rng.sample(SIZE, rng.choice([0, 1, 1, 1, 2, 2]))
        others = rng.sample(OTHER, rng.choice([0, 1, 1, 2, 2, 3]))
        yield [choose(rng) for choose in (*sizes, *others)]


class Kinds(Slurm):
    """Eight nodes of four V100, and four of four A100."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, NODES)
        self.settings = {"Licenses": "tool:4"}

    def _node_lines(self) -> str:
        return (
            f"{self._placed(1, V100)} Gres=gpu:v100:{GPUS} Feature=v100,cab1\n"
            f"{self._placed(V100 + 1, NODES)} Gres=gpu:a100:{GPUS} Feature=a100,cab2\n"
        )

    def _gres_lines(self) -> str:
        kinds = {"v100": self.names[:V100], "a100": self.names[V100:]}
        return "".join(
            f"NodeName={compress(names)} Name=gpu Type={kind} File={self.folder}/dev/nvidia[0-{GPUS - 1}]\n"
            for kind, names in kinds.items()
        )

    advised: Sequence[str] = ()

    def advise(self, *excluded: str) -> None:
        """Write the file for the filters."""
        self.advised = excluded
        client = Client(environment=self.environment())
        sizes = largest_jobs(excluded, list(client.nodes().values()), client.together())
        text = filter_file(excluded, sizes, "batch", is_default=True)
        (self.folder / "advice" / "sgemm.exclude").write_text(text)


@pytest.fixture(scope="module")
def kinds() -> Iterator[Kinds]:
    """The daemons with both filters. A user asks one of them by the environment, the other by the job's comment."""
    with started(Kinds, why_not() or ensure_users()) as cluster:
        if len(cluster.filters) < len(ASKING):
            pytest.skip("this Slurm is built without Lua")
        (cluster.folder / "out" / "every").write_text("".join(f"{name}\n" for name in cluster.names))
        yield cluster


class Answer:
    """What Slurm says to a job."""

    def __init__(self, text: str, is_taken: bool) -> None:
        self.text, self.taken = text, is_taken
        followed = re.search(r"whorl: (?:--exclude=)?(\S+) (?:excluded )?\(slow for sgemm\)", text)
        self.excluded = expand(followed[1]) if followed else []
        match = re.search(r"to start at (\S+) .*? nodes? (\S+)", text)
        self.start = dt.datetime.fromisoformat(match[1]) if match else None
        self.nodes = expand(match[2]) if match else []


ASKING = {"cli_filter": ([], {"WHORL_ADVISE": "sgemm"}), "job_submit": (["--comment=whorl=sgemm"], {})}


def ask(cluster: Slurm, command: Sequence[str], options: Sequence[str], asking: str | None) -> Answer:
    options_of_asking, env = ASKING[asking] if asking else ([], {})
    done = cluster.run(*command[:1], "--test-only", *options_of_asking, *options, *command[1:], user="alice", env=env)
    return Answer(done.stdout + done.stderr, done.returncode == 0)


BATCH = ("sbatch", "--wrap=true")


def check(cluster: Slurm, options: Sequence[str], command: Sequence[str] = BATCH) -> dict[str, bool]:
    """Submit a form with and without each filter; returns which of them acted on a job that Slurm takes."""
    plain, acted = ask(cluster, command, options, None), {}
    for name in ASKING:
        advised = ask(cluster, command, options, name)
        if plain.taken:
            assert advised.taken, f"{command} {options} is refused because of {name}: {advised.text}"
            assert (advised.start is None) == (plain.start is None), advised.text
            if plain.start and advised.start:
                later = advised.start - plain.start
                assert later < dt.timedelta(seconds=30), f"{command} {options} waits {later} because of {name}"
            assert not set(advised.excluded) & set(advised.nodes), advised.text
        acted[name] = bool(advised.excluded) and plain.taken
    return acted


@pytest.mark.long
@pytest.mark.parametrize("form", ISSUED)
def test_forms_that_were_refused(kinds: Kinds, form: str) -> None:
    kinds.advise("n03")
    options = form.format(folder=kinds.folder / "out").split()
    assert ask(kinds, BATCH, options, None).taken
    assert check(kinds, options) == {"cli_filter": False, "job_submit": False}


@contextlib.contextmanager
def as_it_is(cluster: Kinds) -> Iterator[None]:
    yield


@contextlib.contextmanager
def reserved(cluster: Kinds) -> Iterator[None]:
    """Two nodes are alice's, who may use the others, too; the whole cluster is another's in half an hour."""
    reservations = [
        ["reservation=kept", "nodes=n[07-08]", "starttime=now", "users=alice", "duration=20"],
        ["reservation=later", "nodes=ALL", "starttime=now+30minutes", "users=root", "duration=60", "flags=ignore_jobs"],
    ]
    for row in reservations:
        done = cluster.run("scontrol", "create", *row)
        assert done.returncode == 0, done.stderr
    cluster.advise(*cluster.advised)
    try:
        yield
    finally:
        for name in ("kept", "later"):
            cluster.run("scontrol", "delete", f"reservation={name}")


@contextlib.contextmanager
def drained_later(cluster: Kinds) -> Iterator[None]:
    """A node goes out of use after the advice was written: it is the reserve."""
    cluster.run("scontrol", "update", "nodename=n05", "state=drain", "reason=test")
    try:
        yield
    finally:
        cluster.run("scontrol", "update", "nodename=n05", "state=resume")


CONDITIONS: list[tuple[list[str], Callable[[Kinds], contextlib.AbstractContextManager[None]]]] = [
    (["n03"], as_it_is),
    (["n02", "n11"], as_it_is),
    (["n03"], reserved),
    (["n03"], drained_later),
]


@pytest.mark.long
@pytest.mark.parametrize("condition", sample(range(len(CONDITIONS)), short=1))
def test_no_form_is_worse_off_with_advice(kinds: Kinds, condition: int) -> None:
    excluded, state = CONDITIONS[condition]
    kinds.advise(*excluded)
    number, acted = 80, 0
    with state(kinds):
        for i, options in enumerate(shapes(number, seed=condition)):
            command = ("srun", "true") if i % 4 == 3 and "--array" not in " ".join(options) else BATCH
            acted += sum(check(kinds, options, command).values())
    assert acted >= number // 5, "the filters act on common forms"


def why_refused(kinds: Kinds, options: list[str], excluded: str) -> str:
    """What Slurm says against a job of this form; "" where it can start."""
    later = ("--exclude", "--array", "--dependency", "--begin")
    test_options = [option for option in options if not option.startswith(later)]
    done = kinds.run("sbatch", "--test-only", "--wrap=true", f"--exclude={excluded}", *test_options, user="alice")
    return done.stderr if done.returncode else ""


def outcome_of_apply(kinds: Kinds, options: list[str], seed: int) -> str | None:
    """Release a held job with random advice: what came of it; None where it cannot start anyway.

    A job that could start without advice starts, or can still start, and has its own nodes back where the advice
    hindered it.
    """
    submitted = kinds.run(
        "sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=sleep 300", *options, user="alice"
    )
    if submitted.returncode:
        return None
    job, client = submitted.stdout.strip(), Client(environment=kinds.environment())
    (record,) = client.jobs(job)
    rng = random.Random(-seed)
    change = change_of(record, rng.sample(kinds.names, rng.randint(1, 4)))
    could_start = not why_refused(kinds, options, record.excluded)
    options_of_apply = ApplyOptions(release=True, max_delay_s=60.0)
    (change,) = ExclusionTrial(client, job, options_of_apply, 0.0, lambda _: None).run([change])
    records = client.jobs(job)
    waiting = [record for record in records if record.state == "PENDING"] or records  # tasks of an array part
    context = f"seed {seed}: {options} without {change.after.excluded}: {change.notes}"
    assert {record.excluded for record in waiting} == {change.after.excluded}, context
    if change.outcome != "excluded":
        assert change.after.excluded == change.before.excluded == record.excluded, context
        assert {record.comment for record in waiting} == {""}, context
    if could_start:
        assert not any(record.blocked_by("BadConstraints", "JobHeldUser") for record in records), context
        assert why_refused(kinds, options, change.after.excluded) == "", context
        if not any(option.startswith(("--dependency", "--begin", "--array", "--reservation")) for option in options):
            kinds.nodes_of(job)
    kinds.run("scancel", job)
    kinds.until(lambda: not kinds.run("squeue", "-h").stdout, "the job to end")
    return change.outcome if could_start else None


@pytest.mark.long
@pytest.mark.parametrize("condition", [0, 2])
def test_every_form_can_start_with_what_apply_excludes(kinds: Kinds, condition: int) -> None:
    excluded, state = CONDITIONS[condition]
    kinds.advise(*excluded)
    forms = list(enumerate(shapes(125, seed=1000 + condition)))
    kinds.cancel_all()
    kinds.until(lambda: not kinds.run("squeue", "-h", "-a").stdout.strip(), "the jobs to end")
    with state(kinds):
        outcomes = [
            outcome_of_apply(kinds, [option for option in options if "%" not in option], seed)
            for seed, options in sample(forms, short=7)
        ]
        kinds.cancel_all()
    assert outcomes.count("excluded") > 0.1 * sum(outcome is not None for outcome in outcomes), "or nothing is tried"
