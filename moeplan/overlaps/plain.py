"""No overlap inside a layer: each transfer inside a position stands on the critical path (Megatron-LM's 1F1B)."""

from __future__ import annotations

from moeplan.overlap import Overlap, Placement

COMPUTE = ("embedding", "attention", "experts", "dense", "join", "head")
TRANSFER = ("dispatch", "combine")


def make() -> Overlap:
    """Compute on the stream of its pass, transfers inside a position on one collective stream."""

    def placements(stream: str) -> tuple[Placement, ...]:
        compute = tuple(Placement(item=item, stream=stream) for item in COMPUTE)
        return compute + tuple(Placement(item=item, stream="collective") for item in TRANSFER)

    return Overlap(name="plain", forward=placements("forward"), backward=placements("backward"))
