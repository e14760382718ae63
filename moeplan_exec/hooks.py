"""Where one can listen to a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from moeplan.program import Op
from moeplan_exec.parameters import Initialise
from moeplan_exec.parcel import Parcel


def _nothing(*_: object) -> None:
    return None


@dataclass(frozen=True)
class Hooks:
    """Functions that a run calls on every rank."""

    initialise: Initialise | None = None
    """(name, first values) to other first values; the same on all ranks."""
    before: Callable[[Op], None] = _nothing
    """An operation of this rank is about to start."""
    leaving: Callable[[Op, Parcel], None] = _nothing
    """Rows, or their gradients, of this transfer are about to leave for another position."""
    routed: Callable[[int, int, range, Tensor], None] = _nothing
    """(step, layer, sequences, expert numbers [T, k]) of one micro-batch on the rank that routed it."""
    summed: Callable[[int, dict[str, Tensor]], None] | None = None
    """(step, whole gradients by name) of each replica, summed over its holders; costs a gather where it is given."""
