"""A real Slurm of four nodes with eight GPUs each on this machine: one controller, four daemons, invented hardware."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ETC = Path("/etc/slurm")
PORT = 27_000
NODES, GPUS = 4, 8

CONF = """\
ClusterName=estr
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MinJobAge=300
KillWait=5
SlurmdParameters=config_overrides
NodeName=node[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=64 RealMemory=64000 \
Gres=gpu:h800:{gpus} State=UNKNOWN
PartitionName=gpu Nodes=node[1-{nodes}] Default=YES MaxTime=INFINITE State=UP
"""


def available() -> str | None:
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "starting Slurm's daemons needs root"
    if any(shutil.which(name) is None for name in ("slurmctld", "slurmd", "sbatch", "srun")):
        return "Slurm is not installed: apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins"
    if (ETC / "slurm.conf").exists():
        return f"{ETC / 'slurm.conf'} exists: this machine belongs to a cluster"
    return None


@contextmanager
def running(folder: Path) -> Iterator[None]:
    """The cluster, up and idle. Its configuration stands in /etc/slurm: jobs of the executor look nowhere else."""
    for name in ("state", "spool", "log", "run", "gpu"):
        (folder / name).mkdir(parents=True)
    for number in range(GPUS):
        subprocess.run(["mknod", folder / "gpu" / f"gpu{number}", "c", "1", "3"], check=True)
    host = socket.gethostname().split(".")[0]
    conf = CONF.format(host=host, port=PORT, folder=folder, nodes=NODES, first=PORT + 1, last=PORT + NODES, gpus=GPUS)
    gres = f"AutoDetect=off\nNodeName=node[1-{NODES}] Name=gpu Type=h800 File={folder}/gpu/gpu[0-{GPUS - 1}]\n"
    ETC.mkdir(exist_ok=True)
    try:
        (ETC / "slurm.conf").write_text(conf)
        (ETC / "gres.conf").write_text(gres)
        subprocess.run(["slurmctld", "-c"], check=True)
        for number in range(1, NODES + 1):
            subprocess.run(["slurmd", "-N", f"node{number}"], check=True)
        _wait_until_idle(folder)
        yield
    finally:
        subprocess.run(["scancel", "--user", "root"], check=False)
        time.sleep(2)
        for file in (folder / "run").glob("*.pid"):
            subprocess.run(["kill", file.read_text().strip()], check=False)
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink(missing_ok=True)


def _wait_until_idle(folder: Path) -> None:
    for _ in range(300):
        state = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], capture_output=True, text=True, check=False).stdout
        if state.split() == ["idle"] * NODES:
            return
        time.sleep(0.2)
    raise TimeoutError(f"the nodes are not idle: {state!r}\n{(folder / 'log' / 'slurmctld.log').read_text()[-2000:]}")


def queue() -> list[dict[str, str]]:
    """Jobs that wait or run: id, name, nodes, state, GPUs."""
    fields = {"id": "%i", "name": "%j", "nodes": "%D", "state": "%T", "gres": "%b", "comment": "%k"}
    out = subprocess.run(
        ["squeue", "-h", "-o", "|".join(fields.values())], capture_output=True, text=True, check=True
    ).stdout
    return [dict(zip(fields, line.split("|"), strict=True)) for line in out.splitlines()]
