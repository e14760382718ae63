"""One point of the search: what it is called, what decides its cost, and which degrees it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from moeplan.layout import Disaggregated, Layout, Mesh, Recompute
from moeplan.mesh import mesh_of
from moeplan.spec.model import ModelSpec, moe_layers

RECOMPUTE = tuple(Recompute(attention=a, ffn=f) for a in ("none", "full") for f in ("none", "experts", "full"))
"""All rules, cheapest in time first per side."""

MOST_ACTIONS = 400_000
"""Orders longer than this are not simulated: it would take minutes each."""


class Candidate(NamedTuple):
    """One point of the search."""

    layout: Layout
    schedule: str
    recompute: Recompute


def degrees(layout: Layout) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """The degrees of `layout` without its family, for comparison and order; a mesh in those of the colocated one."""
    one = layout if isinstance(layout, Disaggregated) else mesh_of(layout)
    return tuple((name, getattr(one, name)) for name in one.__struct_fields__)


def key_of(candidate: Candidate) -> tuple[object, ...]:
    """What decides the cost of `candidate`, whatever its family; of equal costs the smallest key wins."""
    recompute = candidate.recompute
    return (RECOMPUTE.index(recompute), degrees(candidate.layout), candidate.schedule)


def describe(layout: Layout, model: ModelSpec) -> str:
    """`pp 8 ep 16 dp 16`: the degrees that are not 1 in one line; NICs follow from GPUs.

    Always there are the GPUs of both sides, and etp beside a tp, which would be its default; a model without experts
    has no such degrees.
    """
    parts = []
    always = ("attention_gpus", "ffn_gpus", *(("etp",) if getattr(layout, "tp", 1) > 1 else ()))
    never = () if moe_layers(model) else ("ep", "etp")
    for name in (name for name in layout.__struct_fields__ if name not in never):
        value, word = getattr(layout, name), name.replace("_", "-")
        if name == "split":
            parts += [f"pp-split {','.join(map(str, value))}"] if value else []
        elif name == "deduplicate":
            parts += [word] if value else []
        elif name in always or (value > 1 and "nics" not in name):
            parts.append(f"{word} {value}")
    return " ".join(parts) or "one rank"


def tell(candidate: Candidate, model: ModelSpec) -> str:
    """A candidate in one line: degrees, schedule, and what it computes again."""
    rule = candidate.recompute
    return f"{describe(candidate.layout, model)}, {candidate.schedule}, recompute {rule.attention}/{rule.ffn}"


def has(layout: Layout, fixed: Mapping[str, object]) -> bool:
    """Whether `layout` has the degrees `fixed`."""
    return all(getattr(layout, name, None) == value for name, value in fixed.items())


def schedules_of(layout: Mesh) -> tuple[str, ...]:
    """The schedules of a mesh: interleaved where a position has several chunks; one position needs no second order."""
    if layout.vpp > 1:
        return ("interleaved",)
    return ("1f1b", "gpipe") if layout.pp > 1 else ("1f1b",)
