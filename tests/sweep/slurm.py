"""A Slurm cluster of one node, this machine: munged, slurmctld and slurmd on loopback, with everything they
write in one folder.

Debian's packages slurm-wlm and munge have the programs; nothing of their configuration in /etc is used.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path

from processes import wait_for

PROGRAMS = (
    "setpriv",
    "munged",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "squeue",
    "scontrol",
    "scancel",
    "sinfo",
)
CONF = """
ClusterName=mpx
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# A requeued job waits until its old credential has expired.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=20
# More CPUs than the machine may have, so that two jobs run side by side.
NodeName={host} NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no cluster here; None where there can."""
    found = {name: shutil.which(name, path=_path()) for name in PROGRAMS}
    absent = [name for name, path in found.items() if path is None]
    return f"{', '.join(absent)} not installed: apt-get install slurm-wlm munge" if absent else None


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """Started when constructed; `end` kills its daemons and all jobs.

    folder: new, with a short path, since sockets lie there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
        self.daemons: list[subprocess.Popen] = []
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(
            CONF.format(host=host, ports=_free_ports(2), user=getpass.getuser(), folder=folder)
        )
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        folder.chmod(0o755)
        files = [
            f"--{name}={folder}/munge.{end}"
            for name, end in (("key-file", "key"), ("socket", "socket"), ("pid-file", "pid"))
        ]
        files += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"]
        try:
            self._start("munged", "--foreground", "--force", *files)
            wait_for(lambda: (folder / "munge.socket").exists(), seconds=20)
            self._start("slurmctld", "-D", "-i")
            self._start("slurmd", "-D")
            wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T") == "idle", seconds=30)
        except BaseException:
            self.end()
            raise

    def _start(self, *command: str) -> None:
        """Start a daemon, which also ends where the tests are killed."""
        with open(self.folder / f"{command[0]}.out", "wb") as log:
            daemon = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *command],
                env=os.environ | self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.daemons.append(daemon)

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; empty where it fails."""
        return subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True
        ).stdout.strip()

    def end(self) -> None:
        self.ask("scancel", "--user", getpass.getuser())
        self.ask("scancel", "--signal=KILL", "--full", "--user", getpass.getuser())
        for daemon in reversed(self.daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
