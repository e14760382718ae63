"""How a rank learns who it is: torchrun's variables, then those of a Slurm step, then those of a Slurm job."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from moeplan.errors import ExecutionError, SpecError

_STARTERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("Slurm step", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ("Slurm job", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)


MEETING_S = 60.0
"""How long ranks wait for each other at the start."""


class Start(NamedTuple):
    """One rank of a run, and where it meets the others."""

    rank: int
    world: int
    local_rank: int
    host: str
    port: int
    listening: int | None = None
    """File descriptor of a socket that already listens on `port`, at rank 0."""


def from_environment(variables: Mapping[str, str] = os.environ) -> Start | None:
    """The rank that torchrun or Slurm started; None where neither did; SpecError where a variable is no number."""
    for name, rank, world, local in _STARTERS:
        if rank in variables and world in variables:
            numbers = [_number(variables, key, name) for key in (rank, world)]
            if not 0 <= numbers[0] < numbers[1]:
                raise SpecError(f"{name}: {rank}={numbers[0]} is not below {world}={numbers[1]}")
            local_rank = _number(variables, local, name) if local in variables else numbers[0]
            return Start(numbers[0], numbers[1], local_rank, *_meeting_point(variables, name))
    if ("RANK" in variables) != ("WORLD_SIZE" in variables):
        missing = "WORLD_SIZE" if "RANK" in variables else "RANK"
        raise SpecError(f"torchrun: {missing} is not set; both or neither of RANK and WORLD_SIZE")
    return None


def _number(variables: Mapping[str, str], key: str, starter: str) -> int:
    if not variables[key].isdecimal():
        raise SpecError(f"{starter}: {key}={variables[key]!r} is not a number")
    return int(variables[key])


def _meeting_point(variables: Mapping[str, str], starter: str) -> tuple[str, int]:
    """MASTER_ADDR and MASTER_PORT; under Slurm else the first node, and a port made from the job's number."""
    nodes = variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST", ""))
    host = variables.get("MASTER_ADDR", first_host(nodes))
    if not host:
        raise SpecError(f"{starter}: MASTER_ADDR is not set")
    if "MASTER_PORT" in variables:
        port = _number(variables, "MASTER_PORT", starter)
        if not 0 < port < 65536:
            raise SpecError(f"{starter}: MASTER_PORT={port} is not within 1..65535")
        return host, port
    if "SLURM_JOB_ID" not in variables:
        raise SpecError(f"{starter}: MASTER_PORT is not set")
    return host, 20000 + _number(variables, "SLURM_JOB_ID", starter) % 20000


def first_host(nodes: str) -> str:
    """The first name of a Slurm host list: node[03-07,9],gpu1 begins with node03."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in match.groups()) if match else ""


def join(start: Start, device: str, *, timeout_s: float, token: str) -> torch.device:
    """Meet the other ranks; this rank's device. SpecError where it has none.

    Ranks that do not come within MEETING_S, or bring another `token` (plan and options), are an ExecutionError. CPU
    ranks talk over gloo; GPU ranks over NCCL, with gloo for row counts. The NCCL half has not been run.
    """
    local = 0
    if device == "cuda":
        local, count = start.local_rank, torch.cuda.device_count()
        if local >= count:
            raise SpecError(f"run: local rank {local} has no GPU; this machine has {count}")
        torch.cuda.set_device(local)
    timeout, soon = timedelta(seconds=timeout_s), timedelta(seconds=MEETING_S)
    store = TCPStore(
        start.host,
        start.port,
        start.world,
        is_master=start.rank == 0 and not _agent_store(),
        timeout=soon,
        wait_for_workers=False,
        master_listen_fd=start.listening,
    )
    attempt = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    _meet(attempt, start, token, soon)
    store.set_timeout(timeout)
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, store=attempt, rank=start.rank, world_size=start.world, timeout=timeout)
    return torch.device("cpu") if device == "cpu" else torch.device("cuda", local)


def _meet(store: PrefixStore, start: Start, token: str, soon: timedelta) -> None:
    """Wait until all ranks are there with the same token."""
    keys = [f"here/{rank}" for rank in range(start.world)]
    store.set(keys[start.rank], token)
    try:
        store.wait(keys, soon)
    except RuntimeError:
        late = [rank for rank, key in enumerate(keys) if not store.check([key])]
        raise ExecutionError(f"ranks {late} did not come within {MEETING_S:.0f} s") from None
    others = [rank for rank, key in enumerate(keys) if store.get(key).decode() != token]
    if others:
        raise ExecutionError(f"ranks {others} were started with another plan or other options")


def _agent_store() -> bool:
    """Whether torchrun's agent already serves the store at MASTER_PORT."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
