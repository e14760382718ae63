"""What a plan takes for granted, and what its user should know before running it."""

from __future__ import annotations

from moeplan.batch import Batch
from moeplan.cost.compute import like_of, peak_flop_per_s
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.plan import Plan, world_size
from moeplan.spec.calibration import Calibration, Pattern
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.execution import PEAKS
from moeplan.spec.model import ModelSpec

GIB = 1024**3
ASSUMPTIONS = (
    "routing is balanced: every expert receives the same number of rows",
    "attention is causal; model FLOP leave recomputation out",
    "rows inside a position travel as `execution.dispatcher` and `execution.hidden` say, by default in all their copies"
    " and hidden by nothing; between attention and FFN groups once per node where the layout says deduplicate",
    "memory counts parameters, gradients, optimizer state, activations and row buffers; `memory.usable` keeps the rest",
)


def mfu_basis(case: Case, peak_flop_per_s: float) -> str:
    """What stands behind an MFU of moeplan: the peak that it divides by, and which FLOP are counted."""
    return (
        f"{peak_flop_per_s / 1e12:.5g} TFLOP/s per GPU (dense {case.workload.dtype}); active experts,"
        " causal half of attention, MTP left out, router counted"
    )


def quantised_note(model: ModelSpec) -> str:
    """That a checkpoint's stored element type is not what training takes; empty where it is plain."""
    if not model.checkpoint:
        return ""
    return f"model {model.name}: its checkpoint is quantised ({model.checkpoint}); weights count in the training type"


def case_warnings(case: Case, positions: int) -> tuple[str, ...]:
    """What a user should know of `case` in a pipeline of `positions`, whatever its schedule."""
    model = case.model
    told = {
        f"model {model.name}: {', '.join(model.assumed)} not published: assumed": bool(model.assumed),
        quantised_note(model): bool(model.checkpoint),
        f"memory.zero 3 with {positions} pipeline positions: all weights and gradients of a position stay gathered"
        " from the first to the last micro-batch, as PyTorch's FSDP keeps them; zero 1 or 2 may need less": (
            case.memory.zero == 3 and positions > 1
        ),
    }
    return tuple(text for text, true in told.items() if true)


def mfu_warning(case: Case, mfu: float) -> str:
    """Why `mfu` is above 1: linear layers may multiply in a narrower type than the peak is of; empty up to 1."""
    dtype, linear = case.workload.dtype, case.execution.linear
    if mfu <= 1:
        return ""
    if linear != "same":
        return f"MFU {mfu:.0%} is of the peak in {dtype}, but linear layers multiply in {linear}: it may exceed 100%"
    return f"MFU {mfu:.0%} is more than the GPUs can do: a peak or an efficiency is wrong"


def fit_warning(plan: Plan) -> str:
    """By how much the fullest rank of `plan` exceeds the usable HBM; empty where it fits."""
    most, limit = max(plan.predictions.peak_hbm_bytes, default=0.0), usable_bytes(plan.case)
    if most <= limit:
        return ""
    return f"does not fit: its fullest rank needs {most / GIB:.3g} GiB, {limit / GIB:.3g} GiB are usable"


NCCL: tuple[Pattern, ...] = ("all_to_all", "all_gather", "reduce_scatter", "all_reduce", "point_to_point")
"""Patterns that every plan may use; the dispatcher's comes with the case."""


def calibration_warnings(case: Case, calibration: Calibration) -> tuple[str, ...]:
    """What logs behind `calibration` leave open: patterns that no log tells, and sizes that were left out as outliers.

    Empty where it was not fitted to logs of one's own machine; then each of its numbers is as sure as its source.
    """
    tiers = {"inside a node": calibration.node}
    tiers |= {"between nodes": calibration.network} if case.cluster.nodes > 1 else {}
    if not any(tier.measured for tier in tiers.values()):
        return ()
    asked = dict.fromkeys((*NCCL, case.execution.dispatcher))
    told = []
    for where, tier in tiers.items():
        if missing := [name for name in asked if name not in tier.measured]:
            only = f"only {', '.join(tier.measured)} was measured" if tier.measured else "nothing was measured there"
            told.append(f"calibration {calibration.name}, {where}: {', '.join(missing)} uncalibrated ({only})")
        if tier.flagged:
            told.append(f"calibration {calibration.name}, {where}: outliers left out: {'; '.join(tier.flagged)}")
    return tuple(told)


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """What a user should know before running `plan`."""
    return tuple(filter(None, (*cautions(plan), fit_warning(plan))))


def cautions(plan: Plan) -> tuple[str, ...]:
    """`warnings_of` without whether it fits."""
    positions = len(plan.graph.positions)
    used, given = world_size(plan), num_ranks(plan.case.cluster)
    idle = (f"{used} of {given} GPUs are used",) if used < given else ()
    excess = mfu_warning(plan.case, plan.predictions.mfu)
    dealt = batch_warnings(plan.batch, positions)
    return (*case_warnings(plan.case, positions), *filter(None, (excess,)), *dealt, *idle)


def batch_warnings(dealt: Batch, positions: int) -> tuple[str, ...]:
    """What of `dealt` leaves ranks or pipeline positions without work for a time."""
    last = dealt.global_batch % (dealt.micro_batch * dealt.shards)
    without = (
        f"; {dealt.shards - last} of {dealt.shards} data-parallel ranks have none of it" if last < dealt.shards else ""
    )
    told = {
        f"{dealt.microbatches} micro-batches for {positions} pipeline positions: they wait for each other": (
            dealt.microbatches < positions
        ),
        f"the last micro-batch is short: {dealt.global_batch} sequences are not a multiple of"
        f" {dealt.micro_batch} * {dealt.shards}{without}": last != 0,
        f"{dealt.global_batch} sequences for {dealt.shards} data-parallel ranks: some have none": (
            dealt.global_batch < dealt.shards
        ),
    }
    return tuple(text for text, true in told.items() if true)


def assumed_rates(case: Case, calibration: Calibration) -> tuple[str, ...]:
    """Whose rates linear layers take, and of which peak, where nobody measured their element type on such a GPU."""
    linear = case.execution.linear
    like = like_of(calibration, linear)
    known = [calibration.gemm[name].source if name in calibration.gemm else "assumed" for name in like.of]
    if linear == "same" or "assumed" not in (like.source, *known):
        return ()
    shares = " or ".join(dict.fromkeys(name if name in calibration.gemm else "bf16" for name in like.of))
    peaks = {PEAKS.get(name, name): peak_flop_per_s(case.cluster.gpu, name) / 1e12 for name in like.of}
    of = " and ".join(f"{peak:.5g} TFLOP/s in {name}" for name, peak in peaks.items())
    times = f"{like.times:g} times " if like.times != 1 else ""
    return (f"execution.linear {linear}: rates assumed: {times}the share that {shares} reach, of a dense peak of {of}",)
