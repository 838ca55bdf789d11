"""Host lists against Slurm's own: it reads what whorl writes, and whorl reads what it writes."""

from __future__ import annotations

import random

import pytest

from whorl.store.hostlist import compress, expand
from whorl.tests.slurm.daemons import Slurm

pytestmark = pytest.mark.slurm

LISTS = [
    "n1",
    "n[01-03,07]",
    "n[9-11]",
    "n[099-101]",
    "n[1,01,001]",
    "a,b,c1",
    "c002-[004,011],login",
    "r[1-2]c[01-02]",
    "n[1-3],m5,n[1-2]",
]


@pytest.mark.parametrize("hosts", LISTS)
def test_lists_mean_what_slurm_says(slurm_session: Slurm, hosts: str) -> None:
    done = slurm_session.run("scontrol", "show", "hostnames", hosts)
    assert done.returncode == 0, done.stderr
    assert expand(hosts) == done.stdout.split()


def test_slurm_and_whorl_read_each_others_lists(slurm_session: Slurm) -> None:
    draw = random.Random(5)
    for _ in range(12):
        prefixes = draw.sample(["n", "c002-", "gpu-a", "r1c", "login"], draw.randint(1, 3))
        width = draw.choice(["", "02", "03"])
        names = {f"{draw.choice(prefixes)}{draw.randint(0, 130):{width}}" for _ in range(draw.randint(1, 60))}
        names |= {"head", "n01.site.example", "n02.site.example", "n03-ib"} if draw.random() < 0.5 else set()
        read = slurm_session.run("scontrol", "show", "hostnames", compress(names)).stdout.split()
        assert (len(read), set(read)) == (len(names), names)
        written = slurm_session.run("scontrol", "show", "hostlist", ",".join(sorted(names))).stdout.strip()
        back = expand(written)
        assert (len(back), set(back)) == (len(names), names), written
