"""What of a communication compute still waits for, where the software runs both at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moeplan.spec.case import Case

Floats = NDArray[np.float64]

WAITED = {
    "tensor": 0.35,  # assumed: chunked GEMMs of Transformer Engine hide most; PyTorch's hide less
    "context": 0.7,  # assumed: three tenths of attention run while keys and values travel
}
"""Share that is exposed although it is hidden as far as the software can."""
EXPERT_INSIDE = 0.15
"""Of an all-to-all inside one NVLink domain that the other micro-batch's compute hides (assumed)."""
EXPERT_BETWEEN = 0.634
"""Of one between nodes: 36.6 % were hidden in traces of Megatron-Bridge's skill on expert-parallel overlap."""
BEHIND = 0.8
"""Share of one micro-batch's forward or backward behind which parameters or gradients travel (assumed)."""
TAIL = 0.06
"""Share that stays visible all the same: the first or last bucket (assumed)."""


def exposed(case: Case, kind: str) -> float:
    """Share of a `kind` of communication that compute waits for: 1 where nothing hides it."""
    return WAITED[kind] if kind in case.execution.hidden else 1.0


def exposed_experts(case: Case, *, between: bool) -> float:
    """As `exposed`, of dispatch and combine; `between`: whether they leave a node."""
    if "expert" not in case.execution.hidden:
        return 1.0
    return EXPERT_BETWEEN if between else EXPERT_INSIDE


def outlasting(seconds: Floats, window: Floats) -> Floats:
    """What of a communication once per step the `window` seconds of one micro-batch do not hide, arrays of one shape:
    max(0, seconds - 0.8 window) + 0.06 seconds."""
    return np.asarray(np.maximum(0.0, seconds - BEHIND * window) + TAIL * seconds)


def resharded(
    forward: Floats, backward: Floats, gather: Floats, scatter: Floats, hides_gather: Floats, hides_scatter: Floats
) -> tuple[Floats, Floats]:
    """What a micro-batch's forward and backward wait for where weights are gathered for each of them.

    Seconds, arrays of one shape. Behind compute where that is hidden, max(compute, communication), else one after the
    other; the backward's gradients are summed behind it where they are hidden too.
    """
    behind = np.where(hides_gather > 0, gather, 0.0) + np.where(hides_scatter > 0, scatter, 0.0)
    before = np.where(hides_gather > 0, 0.0, gather) + np.where(hides_scatter > 0, 0.0, scatter)
    ahead = np.where(hides_gather > 0, np.maximum(0.0, gather - forward), gather)
    return ahead, np.maximum(0.0, behind - backward) + before
