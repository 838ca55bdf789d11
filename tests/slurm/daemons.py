"""A real Slurm on this machine: munged, slurmctld and several slurmd, on loopback, with fake GPUs.

In a test (fixtures `slurm` and `slurm_session` in tests/slurm/conftest.py):

    def test_a_job(slurm: Slurm) -> None:
        done = slurm.run("sbatch", "--parsable", "--wrap=true", user="alice")   # None: as root, Slurm's administrator
        slurm.whorl("advise", "apply", done.stdout.strip(), user="alice")       # whorl itself, as that user

Nodes are n01, n02, ... with GPUS GPUs each in the partition `batch` (all), `urgent` (all; its jobs preempt those of
`batch`) and `debug` (n01 only). The GPUs are
character devices of the unused major 120, which nothing opens: with plain files Slurm would schedule the jobs but
never tell them their GPUs. There is no accounting, therefore no database; it starts in about a second. The submit
filters of docs/slurm are on, where this Slurm has Lua; they read the folder `advice`. Everything lies in one folder,
and what was started is stopped by its process id.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from whorl.store import hostlist

USERS = ("alice", "bob")
GROUP = "whorl-tests"  # of these users
GPUS = 4
COMMANDS = (
    "munge",
    "munged",
    "slurmctld",
    "slurmd",
    "scontrol",
    "sbatch",
    "srun",
    "squeue",
    "scancel",
    "sinfo",
    "setpriv",
)
OLDEST = (22, 5)  # the first with --prefer
DEVICE_MAJOR = 120  # for local use: no driver has it
START_S = 60.0
FILTERS = Path(__file__).resolve().parents[2] / "docs" / "slurm"
PLUGINS = {"job_submit": "JobSubmitPlugins", "cli_filter": "CliFilterPlugins"}
"""The submit filters, and the setting of slurm.conf that switches each on."""


def why_not() -> str | None:
    """Why no Slurm can be started here; None where one can."""
    missing = [name for name in COMMANDS if not _which(name)]
    if missing:
        return f"no {', '.join(missing)}: needs the packages slurm-wlm, slurm-wlm-basic-plugins and munge"
    if os.geteuid() != 0:
        return "the daemons of Slurm start as root only"
    for name in ("slurm", "munge"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            return f"there is no user {name}, which Slurm's packages make"
        refused = _refused("setpriv", f"--reuid={name}", f"--regid={name}", "--clear-groups", "true")
        if refused:
            return f"commands cannot be run as the user {name}: {refused}"
    version_text = subprocess.run([_which("slurmctld") or "", "-V"], capture_output=True, text=True, timeout=30).stdout
    version = re.search(r"(\d+)\.(\d+)", version_text)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        return f"{version_text.strip() or 'this Slurm'} is older than 22.05"
    try:
        address = socket.gethostbyname(_host())
    except OSError:
        return f"the host name {_host()} has no address"
    return None if address.startswith("127.") else f"the host name {_host()} is no loopback address"


def ensure_users() -> str | None:
    """Make the ordinary users of the tests where they are missing; returns why that failed."""
    with Path(tempfile.gettempdir(), "whorl-tests-users.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        return _make_users()


def _make_users() -> str | None:
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            if _which("useradd") is None:
                return f"no user {name} and no useradd"
            # The users stay: a machine that runs these tests is made for it, and the next session finds them.
            refused = _refused("useradd", "--create-home", name)
            if refused:
                return f"there is no user {name}, and none can be made: {refused}"
    for name in USERS:
        if name not in _members(GROUP):
            refused = _refused("groupadd", "--force", GROUP) or _refused("usermod", "--append", "--groups", GROUP, name)
            if refused:
                return f"there is no group {GROUP}, and none can be made: {refused}"
    return None


def _members(group: str) -> list[str]:
    try:
        return grp.getgrnam(group).gr_mem
    except KeyError:
        return []


def _refused(*command: str) -> str | None:
    """Why a command fails; None where it does not."""
    try:
        done = subprocess.run(
            [_which(command[0]) or command[0], *command[1:]], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"status {done.returncode}") if done.returncode else None


def _readable(user: str) -> list[str]:
    """Options of setpriv by which a user may read every file, but not write it; none where that is not allowed."""
    options = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    allowed = _refused("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *options, "true") is None
    return options if allowed else []


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _host() -> str:
    return socket.gethostname().partition(".")[0]


def _free_ports(count: int) -> list[int]:
    """That many consecutive free ports on loopback: slurm.conf takes the nodes' ports as a range."""
    # Workers that start clusters at the same time look at other ports: 130 are enough for all of one worker.
    for base in range(26800 + os.getpid() % 250 * 130, 60000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(base, base + count):
                    stack.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(base, base + count))
    pytest.skip("no free ports for Slurm's daemons")


class Slurm:
    """A cluster of `nodes` nodes in `folder`, which must be readable to everyone.

    Accounted (accounted.py) is one that keeps accounts.
    """

    stopped_in_order: Sequence[str] = ("slurmctld", "slurmd", "munged")

    def __init__(self, folder: Path, nodes: int = 6) -> None:
        self.folder, self.nodes = folder, nodes
        self.names = [f"n{number:02d}" for number in range(1, nodes + 1)]
        self.filters = [name for name in PLUGINS if any(Path("/usr/lib").glob(f"**/{name}_lua.so"))]
        self.settings: Mapping[str, str] = {}  # further lines of slurm.conf
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._answering: dict[str | None, subprocess.Popen[str]] = {}
        self._ports = _free_ports(nodes + 12)

    # -- use -----------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """The environment of Slurm's commands."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return variables | {
            "SLURM_CONF": str(self.folder / "etc" / "slurm.conf"),
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }

    def run(
        self,
        *command: str,
        user: str | None = None,
        timeout: float = 30,
        env: dict[str, str] | None = None,
        read_all: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user (None: root), in the folder of jobs' output.

        `read_all` lets an ordinary user read every file, but not write it: whorl may lie where only root can look.
        """
        environment = self.environment() | {"USER": user or "root"} | (env or {})
        return subprocess.run(
            self._line(command, user, read_all=read_all),
            env=environment,
            cwd=self.folder / "out",
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def at_terminal(self, *command: str, user: str, env: dict[str, str], terminal: int) -> subprocess.Popen[bytes]:
        """Start a command as a user at a terminal (a file descriptor), and do not wait for it."""
        environment = self.environment() | {"USER": user} | env
        line, out = self._line(command, user, read_all=False), self.folder / "out"
        return subprocess.Popen(
            line, env=environment, cwd=out, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
        )

    @staticmethod
    def _line(command: Sequence[str], user: str | None, *, read_all: bool) -> list[str]:
        if user is None:
            return list(command)
        reading = _readable(user) if read_all else []
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *reading, *command]

    def program(self, *arguments: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run whorl as a user, in a process of its own."""
        return self.run(sys.executable, "-B", "-m", "whorl", *arguments, user=user, read_all=True, timeout=120)

    def whorl(self, *arguments: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run whorl's command line as a user, in a process of that user's which answers one command after another."""
        answering = self._answering.get(user)
        if answering is None:
            script = str(Path(__file__).with_name("answering.py"))
            answering = self._answering[user] = subprocess.Popen(
                self._line([sys.executable, "-B", script], user, read_all=True),
                env=self.environment() | {"USER": user or "root"},
                cwd=self.folder / "out",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert answering.stdin is not None
        assert answering.stdout is not None
        answering.stdin.write(json.dumps(arguments) + "\n")
        answering.stdin.flush()
        ready, _, _ = select.select([answering.stdout], [], [], 120)
        assert ready, f"whorl did not answer {arguments} in 120 s"
        status, stdout, stderr = json.loads(answering.stdout.readline())
        return subprocess.CompletedProcess(["whorl", *arguments], status, stdout, stderr)

    def python_of_jobs(self, user: str) -> tuple[list[str], dict[str, str]]:
        """A Python with whorl that a job of this user can start, and its environment. Skips where there is none.

        A job has no right to read what only root can: the interpreter of the tests may lie there.
        """
        site = next(path for path in sys.path if path.endswith("site-packages"))
        tree = Path(__file__).resolve().parents[2] / ".venv" / "tree"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        paths = os.pathsep.join([str(tree), site])
        system = shutil.which(version, path="/usr/local/bin:/usr/bin:/bin")
        for program, variables in ((sys.executable, {}), (system, {"PYTHONPATH": paths})):
            # Through a shell, as in a job: setpriv itself could still start what only root may read.
            words = ["sh", "-c", 'exec "$0" -c "import whorl, duckdb"', program or version]
            with contextlib.suppress(OSError):
                if self.run(*words, user=user, env=variables).returncode == 0:
                    return words[-1:], variables
        pytest.skip(f"jobs of {user} cannot start whorl here: no Python that this user may read has it")

    def submit(self, *options: str, user: str | None = "alice", env: dict[str, str] | None = None) -> str:
        """Submit a job that sleeps; returns its id."""
        done = self.run("sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 300", *options, user=user, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def field(self, job: str, name: str) -> str:
        """A field of `scontrol show job`."""
        text = self.run("scontrol", "-o", "show", "job", job).stdout
        fields = dict(part.partition("=")[::2] for part in text.split() if "=" in part)
        return fields.get(name, "")

    def nodes_of(self, job: str, *, within: float = 20) -> list[str]:
        """The nodes of a job, once it runs."""
        self.until(lambda: self.field(job, "JobState") == "RUNNING", f"job {job} to run", within)
        return hostlist.expand(self.field(job, "NodeList"))

    def until(self, condition: Callable[[], bool], purpose: str, within: float = 20) -> None:
        """Wait for a condition."""
        end = time.monotonic() + within
        while not condition():
            assert time.monotonic() < end, f"waited {within} s for {purpose}\n{self.log('slurmctld')}"
            time.sleep(0.1)

    def log(self, daemon: str, lines: int = 20) -> str:
        path = self.folder / "log" / f"{daemon}.log"
        return "\n".join(path.read_text().splitlines()[-lines:]) if path.exists() else ""

    def reset(self) -> None:
        """No jobs, and every node as slurm.conf says."""
        self.cancel_all()
        self.until(lambda: not self.run("squeue", "-h", "-a").stdout.strip(), "the jobs to end")
        nodes = hostlist.compress(self.names)
        features = "AvailableFeatures=v100,cab1", "ActiveFeatures=v100,cab1"
        self.run("scontrol", "update", f"nodename={nodes}", "weight=10", *features)
        for name, node in self.node_states().items():
            if "DRAIN" in node or "DOWN" in node:
                self.run("scontrol", "update", f"nodename={name}", "state=resume")
        self.until(self._all_idle, "all nodes to be idle")

    def cancel_all(self) -> None:
        jobs = set(self.run("squeue", "-h", "-a", "-o", "%A").stdout.split())
        if jobs:
            self.run("scancel", *sorted(jobs))

    def node_states(self) -> dict[str, str]:
        text = self.run("scontrol", "-o", "show", "node").stdout
        lines = (dict(part.partition("=")[::2] for part in line.split() if "=" in part) for line in text.splitlines())
        return {line["NodeName"]: line["State"] for line in lines if "NodeName" in line}

    # -- daemons -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Write the configuration and start everything; returns when all nodes are idle."""
        for name in ("etc", "log", "pid", "state", "spool", "munge", "dev", "out", "advice"):
            (self.folder / name).mkdir(exist_ok=True)
        for name in ("log", "pid", "state", "spool"):
            shutil.chown(self.folder / name, "slurm")
        (self.folder / "out").chmod(0o1777)
        for name in self.filters:
            # The file is looked at again at once: tests change it faster than a minute.
            script = (FILTERS / f"{name}.lua").read_text().replace("local FRESH_S = 60", "local FRESH_S = -1")
            assert '"/etc/slurm/whorl"' in script
            (self.folder / "etc" / f"{name}.lua").write_text(
                script.replace('"/etc/slurm/whorl"', f'"{self.folder}/advice"')
            )
        self._configure()
        self._start_munge()
        self._start_database()
        self.start_controller()
        for name in self.names:
            (self.folder / "spool" / name).mkdir(exist_ok=True)
            self._spawn(f"slurmd.{name}", "slurmd", "-D", "-N", name)
        self.until(self._all_idle, "the nodes to be idle", START_S)

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._configure()
        self._spawn("slurmctld", "slurmctld", "-D", user="slurm")
        self._wait("slurmctld", lambda: "is UP" in self.run("scontrol", "ping").stdout)
        for name, process in self._started.items():
            if name.startswith("slurmd."):
                process.send_signal(signal.SIGHUP)  # it registers at once, not at the controller's next ping

    def stop_controller(self) -> None:
        """Stop slurmctld. Until it is started again, Slurm's commands wait for it for 2 seconds, not for ten."""
        self._stop("slurmctld")
        with (self.folder / "etc" / "slurm.conf").open("a") as configuration:
            configuration.write("MessageTimeout=2\n")

    def reconfigure(self, **settings: str) -> None:
        """Restart the controller with further settings of slurm.conf; the nodes read them, too."""
        self.stop_controller()
        self.settings = settings
        self.start_controller()
        self.until(self._all_idle, "all nodes to be idle")

    def stop(self) -> None:
        """Stop all that was started: the jobs, whose steps would outlive the daemons, then these."""
        for answering in self._answering.values():
            answering.communicate(timeout=30)
        self._answering.clear()
        if "slurmctld" in self._started and self._started["slurmctld"].poll() is None:
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                self.cancel_all()
                self.until(lambda: not self.run("squeue", "-h", "-a", "-t", "R,CG").stdout.strip(), "jobs to end", 10)
        for name in sorted(self._started, key=lambda n: self.stopped_in_order.index(n.partition(".")[0])):
            process = self._started[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for name in list(self._started):
            self._stop(name)

    def _all_idle(self) -> bool:
        states = self.node_states()
        return len(states) == self.nodes and all(state == "IDLE" for state in states.values())

    def _start_database(self) -> None:
        """Start what accounting needs: nothing here."""

    def _further_settings(self) -> str:
        """Lines of slurm.conf."""
        return "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"

    def _start_munge(self) -> None:
        home = self.folder / "munge"
        key = home / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (home, key):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={home / name}" for option, name in files.items()]
        self._spawn("munged", "munged", "--force", "--foreground", *options, user="munge")
        self._wait("munged", lambda: self.run("munge", "-S", str(home / "sock"), "-n").returncode == 0)

    def _spawn(self, name: str, *command: str, user: str | None = None) -> None:
        line = list(command)
        if user is not None:
            line = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *line]
        with (self.folder / "log" / f"{name}.out").open("ab") as out:
            self._started[name] = subprocess.Popen(
                line, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait for a daemon, no longer than it lives: clients of a dead controller would hang."""
        end = time.monotonic() + START_S
        while not ready():
            if self._started[name].poll() is not None or time.monotonic() > end:
                out = (self.folder / "log" / f"{name}.out").read_text()[-2000:]
                pytest.fail(f"{name} did not start: {out}{self.log(name)}")
            time.sleep(0.05)

    def _stop(self, name: str) -> None:
        process = self._started.pop(name)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)

    def _configure(self) -> None:
        etc, ports = self.folder / "etc", self._ports
        nodes = hostlist.compress(self.names)
        (etc / "slurm.conf").write_text(f"""\
ClusterName=whorl
SlurmctldHost={_host()}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SrunPortRange={ports[2]}-{ports[9]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/sock
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/pid/slurmctld
SlurmdPidFile={self.folder}/pid/slurmd.%n
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=1
MinJobAge=300
MpiDefault=none
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,defer_batch=0
PriorityType=priority/multifactor
{self._further_settings()}\
{"".join(f"{PLUGINS[name]}=lua{chr(10)}" for name in self.filters)}\
{"".join(f"{name}={value}{chr(10)}" for name, value in self.settings.items())}\
NodeName=DEFAULT CPUs=8 Sockets=2 CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN Weight=10
{self._node_lines()}\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=batch Nodes={nodes} Default=YES MaxTime=1:00:00 DefaultTime=10 State=UP OverSubscribe=NO PriorityTier=10
PartitionName=urgent Nodes={nodes} MaxTime=5 State=UP OverSubscribe=NO PriorityTier=20 PreemptMode=OFF
PartitionName=debug Nodes={self.names[0]} MaxTime=5 State=UP PriorityTier=10 PreemptMode=OFF
""")
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nConstrainDevices=no\n")
        (etc / "plugstack.conf").write_text("")
        for number in range(GPUS):
            device = self.folder / "dev" / f"nvidia{number}"
            if not device.exists():
                try:
                    os.mknod(device, 0o20666, os.makedev(DEVICE_MAJOR, number))
                except OSError as error:
                    pytest.skip(f"device nodes cannot be made here: {error}")
        (etc / "gres.conf").write_text(self._gres_lines())

    def _placed(self, first: int, last: int) -> str:
        """The beginning of a line of slurm.conf about some of the nodes, counted from 1."""
        ports = f"{self._ports[9 + first]}-{self._ports[9 + last]}"
        names = hostlist.compress(self.names[first - 1 : last])
        return f"NodeName={names} NodeHostname={_host()} NodeAddr=127.0.0.1 Port=[{ports}]"

    def _node_lines(self) -> str:
        """What slurm.conf says of the nodes."""
        return f"{self._placed(1, self.nodes)} Gres=gpu:v100:{GPUS} Feature=v100,cab1\n"

    def _gres_lines(self) -> str:
        """What gres.conf says of the GPUs."""
        return f"Name=gpu Type=v100 File={self.folder}/dev/nvidia[0-{GPUS - 1}]\n"
