"""Seconds of a step from its form: the slowest position's micro-batches, the bubble, and what ends the step.

Everything is written for arrays whose last axes are those of one form, so that many stacked forms are summed at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from moeplan.analytic.form import CLASSES, Floats, Form
from moeplan.cost.beside import SHARPNESS
from moeplan.cost.exposure import outlasting, resharded

STRAGGLING = 0.007
"""More seconds per doubling of the GPUs beyond one node of 8: 4 to 16 times the GPUs cost 1 to 4 % in the weak scaling
of NVIDIA's DGX Cloud benchmarks, recipes of 2025."""
FIXED_S = 0.05
"""Between two steps: data, the gradient's norm, logging (assumed)."""
_HOST = CLASSES.index("host")
_PRODUCTS = [CLASSES.index(name) for name in ("gemm", "narrow_gemm")]
_COMPUTE = [CLASSES.index(name) for name in ("gemm", "narrow_gemm", "attention", "stream", "cast")]


class Step(NamedTuple):
    """Seconds of one step by what they are spent on; `step_s` is their sum. Arrays [...] for stacked forms."""

    compute: Floats
    """Of the slowest position, by class; the host's are those by which launches outlast kernels [..., classes]."""
    bubble: Floats
    hops: Floats
    gradients: Floats
    parameters: Floats
    optimizer: Floats
    straggling: Floats

    @property
    def step_s(self) -> Floats:
        """Seconds of the whole step [...]."""
        return np.asarray(self.compute.sum(axis=-1) + sum(self[1:]))


def step(form: Form, factors: Floats | None = None) -> Step:
    """step = m t_slowest + idle + hops + exposed gradients and parameters + optimizer + fixed, times stragglers.

    A hop of a full pipeline is waited for as far as it outlasts what the slowest position has more to do than the mean.
    `factors` multiply the seconds of each class [..., classes]; none by default. Left out: the order of the schedule,
    and contention between groups that communicate at different times (the simulator has both).
    """
    pieces = form.pieces if factors is None else form.pieces * factors[..., None, :]
    by_class = _spent(pieces)
    forward, backward = form.forward @ by_class, form.backward @ by_class
    ahead, back = forward.sum(axis=-1), backward.sum(axis=-1)
    hides = form.hides_parameters[..., None], form.hides_gradients[..., None]
    waits_ahead, waits_back = resharded(ahead, back, form.regather_s, form.rescatter_s, *hides)
    each = ahead + back + waits_ahead + waits_back
    slowest = each.argmax(axis=-1)
    number = form.positions.sum(axis=-1)
    total, most = (each * form.positions).sum(axis=-1), _at(each, slowest)
    early = form.ahead * ((back * form.positions).sum(axis=-1) / number)[..., None]
    m = form.microbatches
    told = Step(
        compute=m[..., None] * np.take_along_axis(forward + backward, slowest[..., None, None], axis=-2)[..., 0, :],
        bubble=_idle(form, _passes(forward, back), slowest),
        hops=form.hops[..., 0] * form.hop_s[..., 0]
        + form.hops[..., 1] * np.maximum(0.0, form.hop_s[..., 1] - (most - total / number)),
        gradients=_visible(form.scatter_s, back, form.hides_gradients, early) + m * _at(waits_back, slowest),
        parameters=_visible(form.gather_s, ahead, form.hides_parameters, 0.0) + m * _at(waits_ahead, slowest),
        optimizer=form.optimizer_s + FIXED_S,
        straggling=np.zeros_like(m),
    )
    return told._replace(straggling=told.step_s * STRAGGLING * np.maximum(0.0, np.log2(form.gpus / 8)))


def _at(values: Floats, position: Floats) -> Floats:
    """`values` of one position each [..., positions] -> [...]."""
    return np.take_along_axis(values, position[..., None].astype(np.intp), axis=-1)[..., 0]


def _passes(forward: Floats, back: Floats) -> Floats:
    """F, B and W of each position [..., positions, 3]: W, of the weights' gradients, is as long as the forward's
    products, and B what else the backward does."""
    weights = forward[..., _PRODUCTS].sum(axis=-1)
    return np.stack([forward.sum(axis=-1), back - weights, weights], axis=-1)


def _idle(form: Form, passes: Floats, slowest: Floats) -> Floats:
    """Seconds in which the slowest position does nothing, as the schedule's `bubble.Idle` says.

    bubble + m max(0, turns - (F + B + W)), and no less than what one micro-batch needs to pass all others after those
    before it: path + m / directions F + B + W - m (F + B + W).
    """
    own = np.take_along_axis(passes, slowest[..., None, None].astype(np.intp), axis=-2)[..., 0, :]
    held = passes * form.positions[..., None]
    others = (held.sum(axis=-2) - own) / np.maximum(1, form.positions.sum(axis=-1) - 1)[..., None]
    f, b, w = np.moveaxis(own, -1, 0)
    turns = form.turns[..., 0] * np.maximum(f, b) + form.turns[..., 1] * w
    whole, m = f + b + w, form.microbatches
    usual = np.maximum(0.0, (form.bubble * others).sum(axis=-1)) + m * np.maximum(0.0, turns - whole)
    path = (form.path * others).sum(axis=-1) * (form.positions.sum(axis=-1) - 1)
    return np.asarray(np.maximum(usual, path + m / form.directions * f + b + w - m * whole))


def _spent(pieces: Floats) -> Floats:
    """Seconds by class, those of the host reduced to what the GPU waits for: (gpu^4 + host^4)^(1/4) - gpu."""
    gpu, host = pieces[..., _COMPUTE].sum(axis=-1), pieces[..., _HOST]
    spent = pieces.copy()
    spent[..., _HOST] = (gpu**SHARPNESS + host**SHARPNESS) ** (1 / SHARPNESS) - gpu
    return spent


def _visible(seconds: Floats, window: Floats, hidden: Floats, early: Floats | float) -> Floats:
    """What of a communication once per step is not hidden behind one micro-batch, at the worst position.

    Positions that finish `early` communicate while others still compute.
    """
    seen = np.where(hidden[..., None] > 0, outlasting(seconds, window), seconds)
    return np.asarray(np.maximum(0.0, seen - early).max(axis=-1))


def stacked(forms: list[Form]) -> Form:
    """`forms` as one, the shorter ones filled up with rows and positions of no seconds; sources are the first's."""
    numbers = [name for name in Form._fields if isinstance(getattr(forms[0], name), np.ndarray)]
    arrays: dict[str, Any] = {name: _filled([getattr(one, name) for one in forms]) for name in numbers}
    return forms[0]._replace(**arrays)


def _filled(values: list[Floats]) -> Floats:
    """Arrays of unequal shape, one after another [n, ...], with zeros where one is shorter."""
    filled = np.zeros((len(values), *map(max, zip(*(value.shape for value in values), strict=True))))
    for number, value in enumerate(values):
        filled[(slice(number, number + 1), *(slice(length) for length in value.shape))] = value
    return filled
