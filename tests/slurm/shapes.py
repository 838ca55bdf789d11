"""Random shapes of jobs, as options of sbatch, for the cluster of mixed.py. Slurm refuses some of them."""

from __future__ import annotations

import random

FEATURES = ["v100", "a100", "cab1", "cab2", "v100|a100", "v100&cab1", "[cab1|cab2]", "[v100*1&a100*2]"]
FEATURES += ["cab2&(v100|a100)", "big", "a100&cab2"]
SELDOM = (
    *("--exclusive", "--contiguous", "--switches=1", "--spread-job", "--use-min-nodes", "--overcommit"),
    *("--mincpus=4", "--mincpus=12", "--cores-per-socket=4", "--cores-per-socket=8", "--ntasks-per-core=1"),
    *("--hint=compute_bound", "--hint=nomultithread", "--hint=memory_bound", "--gres-flags=enforce-binding"),
    *("--distribution=cyclic", "--distribution=plane=2", "--tmp=10", "--prefer=v100", "--prefer=big"),
    *("--exclude=n01", "--exclude=n03", "--exclude=n[04-05]", "--exclude=n[02,06]", "--exclude=n08"),
    *("--nodelist=n01", "--nodelist=n04", "--nodelist=n[02-03]", "--nodelist=n[01,04]", "--array=1-2"),
    *("--reservation=mine", "--reservation=ours", "--dependency=singleton", "--begin=now+1hour"),
)


def shape(seed: int) -> list[str]:
    """The options of one job."""
    rng = random.Random(seed)
    what = rng.choice(("nodes", "tasks", "gpus"))
    kind = rng.choice(("", "", "v100:", "a100:"))
    options: list[str] = []
    if what == "nodes":
        least = rng.randint(1, 6)
        options.append(f"--nodes={least}" + (f"-{least + rng.randint(0, 4)}" if rng.random() < 0.4 else ""))
        options += [f"--ntasks={least * rng.randint(1, 8)}"] if rng.random() < 0.3 else []
    elif what == "tasks":
        options.append(f"--ntasks={rng.randint(1, 30)}")
    else:
        options.append(f"--gpus={kind}{rng.randint(1, 20)}")
        options += _seldom(rng, 0.4, f"--ntasks={rng.randint(1, 16)}", f"--ntasks-per-gpu={rng.randint(1, 2)}")
        options += _seldom(
            rng, 0.3, f"--gpus-per-node={kind}{rng.randint(1, 4)}", f"--cpus-per-gpu={rng.randint(1, 8)}"
        )
        options += _seldom(rng, 0.2, f"--mem-per-gpu={rng.randint(100, 3000)}")
    if what != "gpus":
        several = f"--gres=gpu:v100:{rng.randint(1, 2)},gpu:a100:{rng.randint(1, 2)}"
        each = [f"--{how}{kind}{rng.randint(1, 4)}" for how in ("gres=gpu:", "gpus-per-task=", "gpus-per-node=")]
        sockets = f"--gpus-per-socket={kind}1 --sockets-per-node=2"
        options += _seldom(rng, 0.7, *each, each[0], several, sockets)
        options += _seldom(rng, 0.3, f"--ntasks-per-node={rng.randint(1, 8)}")
    options += _seldom(rng, 0.3, f"--cpus-per-task={rng.randint(1, 8)}")
    options += _seldom(rng, 0.25, *(f"--constraint={one}" for one in FEATURES))
    options += _seldom(rng, 0.2, *(f"--partition={one}" for one in ("old", "new", "old,new", "debug", "urgent")))
    options += _seldom(rng, 0.2, "--mem=1000", "--mem=6000", "--mem-per-cpu=500", "--mem-per-cpu=2000")
    for _ in range(2):
        options += _seldom(rng, 0.3, *SELDOM)
    return [word for option in options for word in option.split()]


def _seldom(rng: random.Random, how_often: float, *options: str) -> list[str]:
    return [rng.choice(options)] if rng.random() < how_often else []
