"""Runs a plan on this rank."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from moeplan.errors import ExecutionError, ScheduleError, SpecError
from moeplan.plan import Plan, program_of
from moeplan.spec.record import to_json
from moeplan.trace import Span, Trace
from moeplan_exec.groups import make_groups
from moeplan_exec.hooks import Hooks
from moeplan_exec.interpreter import Interpreter
from moeplan_exec.refuse import check_world, refuse
from moeplan_exec.shelf import Shelf
from moeplan_exec.site import find
from moeplan_exec.start import Start, from_environment, join

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


@dataclass(frozen=True)
class Options:
    """How to run a plan."""

    steps: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["bf16", "fp32", "fp64"] | None = None
    """None is the workload's own."""
    seed: int = 0
    lr: float = 1e-3
    trace: bool = True
    """Whether the spans of all ranks and steps are collected."""
    timeout_s: float = 600.0
    """After this long without an answer a peer counts as lost."""


class StepResult(NamedTuple):
    """One optimizer step."""

    step: int
    """From 0."""
    loss: float
    """Mean over all tokens of the step."""
    seconds: float
    """Wall clock, from the first operation to the slowest rank's last."""


@dataclass(frozen=True)
class RunResult:
    """What a run gave; the same on all ranks, but for the trace."""

    steps: tuple[StepResult, ...]
    trace: Trace
    """Of all ranks, at rank 0; this rank's alone elsewhere."""


def run(plan: Plan, options: Options, *, on_step: Callable[[StepResult], None] | None = None) -> RunResult:
    """Run `plan` on the rank that torchrun or Slurm started; every rank calls this.

    `on_step` is called on rank 0. SpecError for a plan that cannot be run or a world of another size; ExecutionError
    names this rank and the cause of its failure, after which the process should `leave`.
    """
    start = from_environment()
    if start is None:
        raise SpecError("run: neither RANK and WORLD_SIZE nor SLURM_PROCID and SLURM_NTASKS are set")
    return run_rank(plan, options, start, on_step=on_step)


def leave(code: int) -> NoReturn:
    """End this process at once: what a rank must do after an ExecutionError or an interrupt.

    Threads that wait for a lost peer cannot be woken, and the usual end of Python would abort over them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_rank(
    plan: Plan,
    options: Options,
    start: Start,
    *,
    hooks: Hooks = Hooks(),  # noqa: B008
    on_step: Callable[[StepResult], None] | None = None,
) -> RunResult:
    """Run `plan` as the rank that `start` describes; errors as `run`."""
    refuse(plan)
    check_world(plan, start.world)
    try:
        token = hashlib.sha256(to_json(plan) + repr(options).encode()).hexdigest()
        device = join(start, options.device, timeout_s=options.timeout_s, token=token)
        result = _run_steps(plan, options, start.rank, device, hooks, on_step)
        dist.destroy_process_group()
    except (SpecError, ScheduleError):
        raise
    except Exception as error:
        cause = str(error) if isinstance(error, ExecutionError) else f"{type(error).__name__}: {error}"
        raise ExecutionError(f"rank {start.rank}: {cause}") from error
    return result


def _run_steps(
    plan: Plan,
    options: Options,
    rank: int,
    device: torch.device,
    hooks: Hooks,
    on_step: Callable[[StepResult], None] | None,
) -> RunResult:
    if device.type == "cpu":
        torch.set_num_threads(1)
    site = find(plan, rank, device, DTYPES[options.dtype or plan.case.workload.dtype])
    program = program_of(plan)
    shelves = {
        number: Shelf(site, replica, options.seed, hooks.initialise)
        for number, replica in enumerate(plan.graph.replicas)
        if any(rank in group for group in replica.groups)
    }
    interpreter = Interpreter(site, program, make_groups(site, program), shelves, hooks)
    results = []
    for step in range(options.steps):
        results.append(_run_step(interpreter, step, options))
        if not options.trace:
            interpreter.clock.take()
        if on_step is not None and rank == 0:
            on_step(results[-1])
    return RunResult(tuple(results), _gather(plan, interpreter.clock.take(), options, rank))


def _run_step(interpreter: Interpreter, step: int, options: Options) -> StepResult:
    start = time.perf_counter()
    loss = interpreter.run_step(step, seed=options.seed, lr=options.lr)
    seconds = time.perf_counter() - start
    total = torch.tensor([loss], dtype=torch.float64)
    slowest = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(total)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return StepResult(step, float(total), float(slowest))


def _gather(plan: Plan, spans: Iterable[Span], options: Options, rank: int) -> Trace:
    places = [(r, p.name) for p in plan.graph.positions for group in p.ranks for r in group]
    lanes = tuple(f"rank {r} ({name})" for r, name in sorted(places))
    if not options.trace:
        return Trace(kind="measured", lanes=lanes, spans=())
    parts: list[list[Span] | None] | None = [None] * len(lanes) if rank == 0 else None
    dist.gather_object(list(spans), parts)
    own = list(spans) if parts is None else [span for part in parts for span in part or ()]
    return Trace(kind="measured", lanes=lanes, spans=tuple(own))
