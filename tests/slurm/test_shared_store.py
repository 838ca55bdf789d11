"""Two users who measure at once, into one store of their group."""

from __future__ import annotations

import shutil

import pytest

from whorl.store import Store
from whorl.tests.slurm.campaigns import Site, every_gpu
from whorl.tests.slurm.daemons import GROUP, Slurm

pytestmark = pytest.mark.slurm


@pytest.mark.long
def test_two_users_fill_one_store_at_once(slurm: Slurm) -> None:
    shared = slurm.folder / "out" / "shared"
    shared.mkdir()
    shutil.chown(shared, "alice", GROUP)
    shared.chmod(0o2770)
    sites = {user: Site(slurm, user=user) for user in ("alice", "bob")}
    nodes = {"alice": "n01", "bob": "n02"}
    every = {one: runs for one, runs in every_gpu(slurm, "launch").items() if one[0][:3] in nodes.values()}
    for site in sites.values():
        site.store = shared / "store"

    def options(user: str) -> tuple[str, ...]:
        # What a job makes is closed to others, if the store does not open it.
        return ("launch", "--suite", "quick", "--campaign", user, "--nodes", nodes[user], "--setup", "umask 077")

    with sites["alice"].driver(*options("alice")) as first, sites["bob"].driver(*options("bob")) as second:
        for driver in (first, second):
            out, error = driver.communicate(timeout=60)
            assert driver.returncode == 0, out + error
    measured = sites["alice"].runs("alice") + sites["alice"].runs("bob")
    assert measured == every
    owners = {path.owner() for path in Store.open(shared / "store").files("runs")}
    assert owners == {"alice", "bob"}
    for user, other in (("alice", "bob"), ("bob", "alice")):
        found = sites[user].campaign("status", "--campaign", other)
        assert found.returncode == 0, found.stderr
        assert "4 of 4" in found.stdout, found.stdout
        compacted = slurm.whorl("store", "compact", "--store", str(shared / "store"), user=user)
        assert compacted.returncode == 0, compacted.stderr
    assert sites["bob"].runs("alice") + sites["bob"].runs("bob") == every
