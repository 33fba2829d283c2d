"""A Ray cluster over the nodes of a Slurm job: one process of ours per node, the first of which is Ray's head."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from estr.cluster.launch.server import stop
from estr.errors import UserError

START_SECONDS = 600.0
POLL_SECONDS = 2.0


class NodeLost(RuntimeError):
    """A node left the cluster while the job ran."""


@dataclass(frozen=True)
class Allocation:
    """The place of this process among those of the job; `rank` 0 starts the trainer."""

    rank: int
    nodes: int
    head: str
    port: int
    gpus: int
    cores: int

    @classmethod
    def of_this_job(
        cls, nodes: int, gpus: int, cores: int, port: int, environment: Mapping[str, str] = os.environ
    ) -> Allocation:
        """From the variables of `srun`; outside Slurm this machine alone.

        Raises:
            UserError: the job has another number of tasks than the run has nodes.
        """
        tasks = int(environment.get("SLURM_NTASKS", "1"))
        if tasks != nodes:
            raise UserError(
                f"the run needs {nodes} nodes with one task each, this job has {tasks}: start it with "
                f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1"
            )
        head = environment.get("ESTR_HEAD") or _first_node(environment)
        return cls(int(environment.get("SLURM_PROCID", "0")), tasks, head, port, gpus, cores)

    @property
    def address(self) -> str:
        return f"{self.head}:{self.port}"


def _first_node(environment: Mapping[str, str]) -> str:
    listed = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if listed is None:
        return "127.0.0.1"
    command = ["scontrol", "show", "hostnames", listed]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0]
    return socket.gethostbyname(name)


OTHER_VENDORS = ("ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
"""Slurm sets these beside CUDA_VISIBLE_DEVICES, whatever the GPUs are; verl refuses to start where both are set."""


EXPIRATION = "SAGEMAKER_CURRENT_CAPACITY_BLOCK_EXPIRATION_TIMESTAMP"
"""When this machine will be taken away, in seconds since the epoch: verl's asynchronous trainer saves before.

verl reads that of another cloud too (MLP_...), but there it waits for a duration which this trainer never takes.
"""


def job_environment(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of this job, for Ray and the trainer; Slurm's end of the job is told to verl."""
    kept = {name: value for name, value in environment.items() if name not in OTHER_VENDORS}
    end = environment.get("SLURM_JOB_END_TIME")
    return kept if end is None else {EXPIRATION: end} | kept


def token_environment(file: Path) -> dict[str, str]:
    """Variables by which Ray's processes know each other: a secret of the run, in a file that its owner alone reads."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as secret:
                secret.write(secrets.token_hex(32))
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}


def _ray(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("ray")), *arguments]


@contextlib.contextmanager
def head_node(allocation: Allocation, environment: Mapping[str, str]) -> Iterator[Node]:
    """Ray's head here; it is up when all nodes have joined, and stopped at the end.

    Raises:
        UserError: a node does not join in time.
    """
    options = [
        "--head",
        f"--node-ip-address={allocation.head}",
        f"--port={allocation.port}",
        "--dashboard-host=127.0.0.1",
    ]
    with _node([*options, "--include-dashboard=false"], allocation, environment) as node:
        _wait_for(allocation, node, environment)
        yield node


@contextlib.contextmanager
def worker_node(allocation: Allocation, environment: Mapping[str, str]) -> Iterator[Node]:
    """A node that joins the head; tried again until the head is there."""
    with _node([f"--address={allocation.address}"], allocation, environment) as node:
        yield node


@dataclass(frozen=True)
class Node:
    """`ray start --block` on this machine."""

    process: subprocess.Popen[bytes]

    def alive(self) -> bool:
        return self.process.poll() is None


@contextlib.contextmanager
def _node(options: list[str], allocation: Allocation, environment: Mapping[str, str]) -> Iterator[Node]:
    command = _ray("start", "--block", f"--num-gpus={allocation.gpus}", f"--num-cpus={allocation.cores}", *options)
    quiet = dict(environment) | {"RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(command, env=quiet, stdout=sys.stderr, start_new_session=True)
    try:
        yield Node(process)
    finally:
        stop(process)


def _wait_for(allocation: Allocation, node: Node, environment: Mapping[str, str]) -> None:
    deadline = time.monotonic() + START_SECONDS
    joined = 0
    while time.monotonic() < deadline:
        if not node.alive():
            raise UserError(f"Ray's head did not start on {allocation.address}; is the port taken? (configs/site.yaml)")
        joined = living_nodes(allocation, environment)
        if joined >= allocation.nodes:
            return
        time.sleep(POLL_SECONDS)
    raise UserError(f"{joined} of {allocation.nodes} nodes joined {allocation.address} within {START_SECONDS:.0f} s")


_COUNT = (
    "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False); print(sum(n['Alive'] for n in ray.nodes()))"
)


def living_nodes(allocation: Allocation, environment: Mapping[str, str]) -> int:
    """Nodes of the cluster that answer; 0 if the head does not."""
    command = [sys.executable, "-c", _COUNT, allocation.address]
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return 0
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else 0
