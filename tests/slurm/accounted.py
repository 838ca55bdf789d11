"""A Slurm that keeps accounts: slurmdbd and MariaDB beside the daemons of daemons.py, and tags in prolog and epilog.

The database is private: no network port, its own folder, and no password, as it knows its users by the system's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from whorl.jobs.accounting import tags
from whorl.tests.slurm.daemons import DEVICE_MAJOR, GPUS, USERS, Slurm, _host, _which

COMMANDS = ("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db", "sacctmgr", "sacct")
_PLUGIN = "accounting_storage_mysql.so"


def why_not() -> str | None:
    """Why no accounts can be kept here, on a machine that can run the daemons; None where they can."""
    missing = [name for name in COMMANDS if not _which(name)]
    if not any(Path("/usr/lib").glob(f"**/slurm*/{_PLUGIN}")):
        missing.append(_PLUGIN)
    if missing:
        return f"no {', '.join(missing)}: needs the packages slurmdbd, slurm-wlm-mysql-plugin and mariadb-server"
    return None


FIRST_DEVICE = 4
"""The device files are nvidia4 to nvidia7, as where other boards have the first numbers."""


def uuid(node: str, index: int) -> str:
    """The UUID of the GPU with this index of Slurm on a node: its place in gres.conf."""
    return f"GPU-{int(node[1:]):08d}-0000-0000-0000-{index:012d}"


class Accounted(Slurm):
    """As Slurm, with accounts of the users, and the tags of all jobs in the folder `spool_of_tags`."""

    stopped_in_order = ("slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged")

    @property
    def spool_of_tags(self) -> Path:
        return self.folder / "tags"

    def start(self) -> None:
        self._write_tagging()
        super().start()

    def accounted(self, *options: str) -> set[str]:
        """The numbers of jobs in the accounts."""
        return set(self.run("sacct", "-a", "-X", "-n", "-P", *options, "-o", "JobIDRaw").stdout.split())

    def settle(self) -> None:
        """Wait until all jobs have ended, in the accounts too: these know it a moment later."""
        self.until(lambda: not self.run("squeue", "-h", "-a", "-t", "R,CG,S").stdout.strip(), "the jobs to end")
        self.until(lambda: not self.accounted("-s", "R"), "the accounts to have the ends of the jobs")

    def _further_settings(self) -> str:
        return f"""\
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageTRES=gres/gpu,gres/gpu:v100
AccountingStorageHost=127.0.0.1
AccountingStoragePort={self._ports[-1]}
AccountingStoragePass={self.folder}/munge/sock
Prolog={self.folder}/etc/prolog.sh
Epilog={self.folder}/etc/epilog.sh
PrologFlags=Alloc
"""

    def _gres_lines(self) -> str:
        for number in range(FIRST_DEVICE, FIRST_DEVICE + GPUS):
            device = self.folder / "dev" / f"nvidia{number}"
            if not device.exists():
                os.mknod(device, 0o20666, os.makedev(DEVICE_MAJOR, number))
        return f"Name=gpu Type=v100 File={self.folder}/dev/nvidia[{FIRST_DEVICE}-{FIRST_DEVICE + GPUS - 1}]\n"

    def _start_database(self) -> None:
        home = self.folder / "mysql"
        home.mkdir()
        shutil.chown(home, "mysql")
        home.chmod(0o755)
        database = subprocess.run(
            [
                *(_which("mariadb-install-db") or "", "--no-defaults", "--user=mysql", f"--datadir={home}"),
                *("--auth-root-authentication-method=socket", "--skip-test-db", "--innodb-log-file-size=4M"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert database.returncode == 0, database.stderr
        socket, log = home / "sock", self.folder / "log" / "mariadbd.log"
        log.touch()
        shutil.chown(log, "mysql")
        small = ("--performance-schema=OFF", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=4M")
        options = ["--no-defaults", "--user=mysql", f"--datadir={home}", f"--socket={socket}", f"--log-error={log}"]
        options += ["--skip-networking", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", *small]
        self._spawn("mariadbd", "mariadbd", *options)
        self._wait("mariadbd", lambda: self._sql("select 1").returncode == 0)
        done = self._sql(
            "create database slurm_acct_db; create user slurm@localhost identified via unix_socket; "
            "grant all on slurm_acct_db.* to slurm@localhost;"
        )
        assert done.returncode == 0, done.stderr
        configuration = self.folder / "etc" / "slurmdbd.conf"
        configuration.write_text(f"""\
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/sock
DbdHost={_host()}
DbdAddr=127.0.0.1
DbdPort={self._ports[-1]}
SlurmUser=slurm
PidFile={self.folder}/pid/slurmdbd
LogFile={self.folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
CommunicationParameters=NoInAddrAny
""")
        shutil.chown(configuration, "slurm")
        configuration.chmod(0o600)
        self.start_accounting()
        for line in ("add cluster whorl", "add account physics", f"add user {','.join(USERS)} account=physics"):
            done = self.run("sacctmgr", "-i", *line.split())
            assert done.returncode == 0, done.stdout + done.stderr

    def start_accounting(self) -> None:
        self._spawn("slurmdbd", "slurmdbd", "-D", user="slurm")
        self._wait("slurmdbd", lambda: self.run("sacctmgr", "-n", "show", "cluster").returncode == 0)

    def stop_accounting(self) -> None:
        self._stop("slurmdbd")

    def environment(self) -> dict[str, str]:
        return super().environment() | {"MYSQL_UNIX_PORT": str(self.folder / "mysql" / "sock")}

    def _sql(self, text: str) -> subprocess.CompletedProcess[str]:
        return self.run("mariadb", "--no-defaults", "-S", str(self.folder / "mysql" / "sock"), "-e", text)

    def _write_tagging(self) -> None:
        """Prolog and epilog that tag, and for each node what the driver would say below /proc.

        The device files are numbered against the order of the PCI addresses, as on many machines: neither the number
        nor the address of a GPU is the index that Slurm gives to it.
        """
        etc = self.folder / "etc"
        etc.mkdir(exist_ok=True)
        self.spool_of_tags.mkdir()
        (etc / "whorl-tag").write_text(tags.script())
        for event, name in (("begin", "prolog.sh"), ("end", "epilog.sh")):
            (etc / name).write_text(
                "#!/bin/sh\n"
                f"export WHORL_PROC={self.folder}/proc/$SLURMD_NODENAME\n"
                f"exec sh {etc}/whorl-tag {event} {self.spool_of_tags}\n"
            )
            (etc / name).chmod(0o755)
        for node in self.names:
            for index in range(GPUS):
                about = self.folder / "proc" / node / "driver" / "nvidia" / "gpus" / f"0000:0{GPUS - index}:00.0"
                about.mkdir(parents=True)
                (about / "information").write_text(
                    f"GPU UUID: \t {uuid(node, index)}\nDevice Minor: \t {FIRST_DEVICE + index}\n"
                )
            (self.folder / "proc" / node / "stat").write_text("btime 1000000000\n")
