"""Seconds of a step from its form: the slowest position's micro-batches, the bubble, and what ends the step."""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np

from moeplan.analytic.form import CLASSES, Floats, Form
from moeplan.cost.beside import SHARPNESS

BEHIND = 0.8
"""Share of one micro-batch's forward or backward behind which parameters or gradients travel (assumed)."""
TAIL = 0.06
"""Share that stays visible all the same: the first or last bucket (assumed)."""
STRAGGLING = 0.007
"""More seconds per doubling of the GPUs beyond one node of 8: 4 to 16 times the GPUs cost 1 to 4 % in the weak scaling
of NVIDIA's DGX Cloud benchmarks, recipes of 2025."""
FIXED_S = 0.05
"""Between two steps: data, the gradient's norm, logging (assumed)."""
_HOST = CLASSES.index("host")
_COMPUTE = [CLASSES.index(name) for name in ("gemm", "narrow_gemm", "attention", "stream")]


class Step(NamedTuple):
    """Seconds of one step by what they are spent on; `step_s` is their sum."""

    compute: Floats
    """Of the slowest position, by class; the host's are those by which launches outlast kernels [classes]."""
    bubble: float
    hops: float
    gradients: float
    parameters: float
    optimizer: float
    straggling: float

    @property
    def step_s(self) -> float:
        """Seconds of the whole step."""
        return float(self.compute.sum()) + sum(self[1:])


def step(form: Form, factors: Floats | None = None) -> Step:
    """step = m t_slowest + b t_others + hops + exposed gradients and parameters + optimizer + fixed, times stragglers.

    `factors` multiply the seconds of each class [classes]; none by default. Left out: the order of the schedule, and
    contention between groups that communicate at different times (the simulator has both).
    """
    pieces = form.pieces if factors is None else form.pieces * factors
    by_class = _spent(pieces)
    forward, backward = form.forward @ by_class, form.backward @ by_class
    waits_forward, waits_backward = _resharded(form, forward.sum(axis=1), backward.sum(axis=1))
    each = forward.sum(axis=1) + backward.sum(axis=1) + waits_forward + waits_backward
    slowest = int(each.argmax())
    m = form.microbatches
    early = form.ahead * float(backward.sum(axis=1).mean())
    gradients = _visible(form.scatter_s, backward.sum(axis=1), "gradients" in form.hides, early)
    parameters = _visible(form.gather_s, forward.sum(axis=1), "parameters" in form.hides)
    compute = m * (forward[slowest] + backward[slowest])
    told = Step(
        compute=compute,
        bubble=form.bubble * (float(each.sum()) - float(each[slowest])) / max(1, len(each) - 1),
        hops=_hops_s(form, float(each[slowest] - each.mean())),
        gradients=gradients + m * float(waits_backward[slowest]),
        parameters=parameters + m * float(waits_forward[slowest]),
        optimizer=form.optimizer_s + FIXED_S,
        straggling=0.0,
    )
    return told._replace(straggling=told.step_s * STRAGGLING * max(0.0, log2(form.gpus / 8)))


def _hops_s(form: Form, slack_s: float) -> float:
    """Seconds of the hops; those of a full pipeline pass behind what the slowest position takes longer than others."""
    ends, full = form.hops
    return ends * form.hop_s + full * max(0.0, form.hop_s - slack_s)


def _spent(pieces: Floats) -> Floats:
    """Seconds by class, those of the host reduced to what the GPU waits for: (gpu^4 + host^4)^(1/4) - gpu."""
    gpu, host = pieces[:, _COMPUTE].sum(axis=1), pieces[:, _HOST]
    spent = pieces.copy()
    spent[:, _HOST] = (gpu**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS) - gpu
    return spent


def _visible(seconds: Floats, window: Floats, hidden: bool, early: Floats | float = 0.0) -> float:
    """What of a communication once per step is not hidden behind one micro-batch, at the worst position.

    Positions that finish `early` communicate while others still compute.
    """
    seen = np.maximum(0.0, seconds - BEHIND * window) + TAIL * seconds if hidden else seconds
    return float(np.maximum(0.0, seen - early).max())


def _resharded(form: Form, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
    """What each micro-batch waits for where weights are gathered for it: once in the forward, once in the backward.

    Behind compute where that is hidden: max(compute, communication), else one after the other.
    """
    there, back = form.regather_s, form.regather_s + form.rescatter_s
    if "parameters" in form.hides:
        return np.maximum(0.0, there - forward), np.maximum(0.0, back - backward)
    return there, back
