"""What waits on one rank between two operations of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from moeplan.program import Op
from moeplan_exec.autograd import Gradients, Kept
from moeplan_exec.exchange import Arriving
from moeplan_exec.model import Tensors
from moeplan_exec.parcel import Parcel
from moeplan_exec.under_way import Underway

Key = tuple[int, int]
"""(piece, micro-batch)."""


@dataclass
class Desk:
    """All that lies on the desk during one step; empty before and after."""

    inputs: dict[Key, Tensors] = field(default_factory=dict)
    """Waiting for the forward of a piece."""
    outputs: dict[Key, Tensors] = field(default_factory=dict)
    """Waiting to be sent."""
    gradients: dict[Key, Gradients] = field(default_factory=dict)
    """Of the outputs of a piece, waiting for its backward."""
    kept: dict[Key, Kept] = field(default_factory=dict)
    arriving: dict[int, tuple[Op, int, Arriving | Underway[Parcel]]] = field(default_factory=dict)
    """Transfers inside the position by operation id, with their start."""
    losses: list[Tensor] = field(default_factory=list)
    """Shares of the loss [] of the micro-batches whose head is here."""

    def left(self) -> list[object]:
        """Keys of all that nobody has fetched."""
        return [*self.inputs, *self.outputs, *self.gradients, *self.kept, *self.arriving]
