"""The mesh of layouts whose ranks hold attention and experts alike: TP x CP x DP and ETP x EP x EDP inside PP stages.

Ranks are numbered as Megatron-LM numbers them: tensor-parallel neighbours first, pipeline stages last. A position is
the smallest block that whole attention groups and whole expert groups tile; further blocks of a stage are copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import lcm

from moeplan.assembly import assemble, grid
from moeplan.errors import SpecError
from moeplan.layout import Colocated, Mesh, Piper, Position, StageGraph, check_positive, split_evenly
from moeplan.spec.case import Case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.model import Mamba2, ModelSpec, kv_heads, moe_layers


def mesh_of(layout: Mesh) -> Colocated:
    """`layout` in the degrees of a colocated mesh.

    Piper's ranks of an expert group are data-parallel for attention: its dp copies are ep * dp such ranks.
    """
    if isinstance(layout, Piper):
        return Colocated(
            pp=layout.pp,
            vpp=layout.vpp,
            ep=layout.ep,
            dp=layout.ep * layout.dp,
            micro_batch=layout.micro_batch,
            split=layout.split,
        )
    return layout


def layers_of(num_layers: int, layout: Colocated) -> list[int]:
    """Layers of each virtual stage of `layout`."""
    return list(layout.split) or split_evenly(num_layers, layout.pp * layout.vpp)


def block(layout: Colocated) -> int:
    """Ranks of one position of one copy: lcm(tp cp, etp ep)."""
    return lcm(layout.tp * layout.cp, layout.etp * layout.ep)


def check_degrees(model: ModelSpec, layout: Colocated, world: int) -> None:
    """SpecError with the substituted numbers unless the degrees divide what they cut."""
    check_positive(layout)
    check_experts(model, layout.ep, world)
    product = layout.tp * layout.cp * layout.dp * layout.pp
    expert_mesh = layout.etp * layout.ep * layout.pp
    rules = [
        (
            product == world,
            f"tp {layout.tp} * cp {layout.cp} * dp {layout.dp} * pp {layout.pp} = {product}, not {world}",
        ),
        (
            world % expert_mesh == 0,
            f"etp {layout.etp} * ep {layout.ep} * pp {layout.pp} = {expert_mesh} does not divide {world} ranks",
        ),
        (
            layout.pp * layout.vpp <= model.num_layers,
            f"pp {layout.pp} * vpp {layout.vpp} = {layout.pp * layout.vpp} stages for {model.num_layers} layers",
        ),
        (
            len(layout.split) in (0, layout.pp * layout.vpp),
            f"split {list(layout.split)} names {len(layout.split)} stages, not pp {layout.pp} * vpp {layout.vpp}",
        ),
        (
            min(layout.split, default=1) > 0,
            f"split {list(layout.split)} has a stage of {min(layout.split, default=1)} layers; at least 1",
        ),
        (
            sum(layout.split) in (0, model.num_layers),
            f"split {list(layout.split)} has {sum(layout.split)} layers, not {model.num_layers}",
        ),
        (not (reason := uncut(model, layout.tp)), reason),
        (
            moe_layers(model) > 0 or layout.etp in (1, layout.tp),
            f"etp {layout.etp} for a model without experts; it may be 1, or tp {layout.tp}",
        ),
    ]
    for right, message in rules:
        if not right:
            raise SpecError(f"layout: {message}")


def uncut(model: ModelSpec, tp: int) -> str:
    """Why `tp` ranks cannot share the model's heads; empty where they can.

    Heads of queries and of a mixer are divided; those that several of them share are divided, or held several times.
    """
    mixer, attention = model.mixer, model.attention
    divided = {"heads": attention.heads}
    shared = {"key-value heads": kv_heads(attention)}
    if isinstance(mixer, Mamba2):
        divided["heads of the mixer"], shared["groups of the mixer"] = mixer.heads, mixer.groups
    elif mixer is not None:
        divided["value heads of the mixer"], shared["key heads of the mixer"] = mixer.value_heads, mixer.key_heads
    wrong = [f"{n} {name} % tp {tp} is not 0" for name, n in divided.items() if n % tp]
    apart = [f"{n} {name} and tp {tp} do not divide each other" for name, n in shared.items() if n % tp and tp % n]
    return next(iter(wrong + apart), "")


def check_experts(model: ModelSpec, ep: int, world: int) -> None:
    """SpecError that lists the degrees that would do, unless `ep` divides the experts; without experts it is 1."""
    if ep > 1 and not moe_layers(model):
        raise SpecError(f"layout: ep {ep} for a model without experts; it may be 1")
    if model.experts and model.experts % ep:
        right = [str(d) for d in range(1, min(model.experts, world) + 1) if model.experts % d == 0]
        raise SpecError(f"layout: {model.experts} experts % ep {ep} is not 0; ep may be {', '.join(right)}")


def mesh_stages(case: Case, layout: Colocated) -> StageGraph:
    """The stage graph of `layout`."""
    check_degrees(case.model, layout, num_ranks(case.cluster))
    if case.workload.seq_len % layout.cp:
        raise SpecError(f"layout: sequences of {case.workload.seq_len} tokens % cp {layout.cp} is not 0")
    stage_world = layout.tp * layout.cp * layout.dp
    size = block(layout)
    counts = layers_of(case.model.num_layers, layout)
    stage_of = [stage for stage, count in enumerate(counts) for _ in range(count)]
    return assemble(
        case.model,
        positions=[
            Position(name=f"stage {i}", ranks=grid(i * stage_world, size, stage_world // size, size), spread="sequence")
            for i in range(layout.pp)
        ],
        stages=[(s % layout.pp,) for s in range(layout.pp * layout.vpp)],
        stage_of=lambda layer, side: stage_of[layer],
        tp=layout.tp,
        cp=layout.cp,
        etp=layout.etp,
        ep=layout.ep,
        exchange=case.execution.exchange,
        sharded=case.memory.optimizer_shards != 1 and case.memory.zero > 0,
    )


VIRTUAL_STAGES = tuple(range(1, 9))
MICRO_BATCHES = (1, 2, 4, 8)


def divisors(number: int) -> list[int]:
    """All positive divisors, ascending."""
    return [d for d in range(1, number + 1) if number % d == 0]


def meshes(case: Case, chosen: Mapping[str, Sequence[int]], *, widest_tp: int, widest_ep: int) -> Iterator[Colocated]:
    """Every mesh over all GPUs with tp, ep up to the given sizes and etp = 1.

    `chosen` may give other values of vpp and micro_batch than the usual ones.
    """
    virtual, sizes = chosen.get("vpp", VIRTUAL_STAGES), chosen.get("micro_batch", MICRO_BATCHES)
    model, world = case.model, num_ranks(case.cluster)
    experts = model.experts if moe_layers(model) else 1
    for pp in (d for d in divisors(world) if d <= model.num_layers):
        per_stage = world // pp
        for tp in (d for d in divisors(per_stage) if d <= widest_tp and not uncut(model, d)):
            dp = per_stage // tp
            for ep in (d for d in divisors(experts) if d <= widest_ep):
                if per_stage % lcm(tp, ep):
                    continue
                for vpp in (v for v in virtual if pp * v <= model.num_layers and (v == 1 or pp > 1)):
                    for b in (b for b in sizes if b == 1 or b * dp <= case.workload.global_batch):
                        yield Colocated(tp=tp, pp=pp, vpp=vpp, ep=ep, dp=dp, micro_batch=b)
