"""What must hold between the parts of a plan, whoever wrote or edited it."""

from __future__ import annotations

from typing import Final

from moeplan import assembly
from moeplan.batch import batch
from moeplan.errors import SpecError
from moeplan.layout import Disaggregated, Piper, check_positive
from moeplan.mesh import mesh_of
from moeplan.plan import Plan, inputs_digest, place, program_of, tiers_in, world_size
from moeplan.spec.case import check_case
from moeplan.spec.cluster import num_ranks
from moeplan.spec.model import moe_layers

EDITED: Final = "predictions: inputs or predictions were edited after they were made; run moeplan optimize again"
LARGEST: Final = 1e300
"""What a predicted number may be, so that sums and intervals of them stay finite."""
SPREADS: Final = 10.0
"""What the spread of the step's logarithm may be: its interval spans fourteen orders of magnitude then."""


def check(plan: Plan) -> None:
    """SpecError or ScheduleError unless the parts of `plan` belong together."""
    check_case(plan.case)
    check_positive(plan.layout)
    _check_stages(plan)
    assembly.check(plan.case.model, plan.graph)
    _check_graph(plan)
    _check_batch(plan)
    _check_layout(plan)
    if world_size(plan) > num_ranks(plan.case.cluster):
        raise SpecError(f"plan: {world_size(plan)} ranks, its cluster has {num_ranks(plan.case.cluster)}")
    if plan.placement != place(plan.case.cluster, world_size(plan)):
        raise SpecError("placement: nodes and NICs are not those of the cluster's ranks in node order")
    if plan.tiers != tiers_in(plan.graph, plan.case.cluster):
        raise SpecError("tiers: nodes and groups are not those of the ranks that exchange rows by nodes")
    _check_predictions(plan)
    program_of(plan)
    if plan.predictions.of_inputs not in ("", inputs_digest(plan)):
        raise SpecError(EDITED)


def _check_predictions(plan: Plan) -> None:
    """SpecError at the first number that is not from 0 to `LARGEST`, or where bytes are not one per position."""
    told, positions = plan.predictions, len(plan.graph.positions)
    for name in ("peak_hbm_bytes", "static_hbm_bytes"):
        values = getattr(told, name)
        if len(values) not in (0, positions):
            raise SpecError(f"predictions: {name} has {len(values)} values for {positions} positions")
        for position, value in enumerate(values):
            _check_number(f"{name}[{position}]", value, LARGEST)
    floats = ("step_s", "tokens_per_s", "mfu", "peak_flop_per_s", "model_flop", "exposed_communication_s", "bubble")
    for name in floats:
        _check_number(name, getattr(told, name), LARGEST)
    _check_number("spread", told.spread, SPREADS)


def _check_number(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        raise SpecError(f"predictions: {name} {value:g} is not from 0 to {most:g}")


def _check_batch(plan: Plan) -> None:
    dealt, first = plan.batch, plan.graph.positions[0].ranks
    shards = len(first) * len(first[0]) // (plan.graph.tp * plan.graph.cp)
    whole = dealt.micro_batch > 0 and shards > 0
    expected = batch(plan.case.workload.global_batch, dealt.micro_batch, shards) if whole else None
    if dealt != expected:
        raise SpecError(
            f"batch: {dealt.microbatches} micro-batches of {dealt.micro_batch} on {dealt.shards} shards do not hold the"
            f" {plan.case.workload.global_batch} sequences of the workload on {shards} shards"
        )


def _check_stages(plan: Plan) -> None:
    graph = plan.graph
    if any(not 0 <= p < len(graph.positions) for homes in graph.stages for p in homes) or not all(graph.stages):
        raise SpecError(f"graph: a stage lives outside of the {len(graph.positions)} positions")
    for stage, homes in enumerate(graph.stages):
        if len(set(homes)) != len(homes):
            raise SpecError(f"graph: stage {stage} lists a position twice: {list(homes)}")
    for piece in graph.pieces:
        if not 0 <= piece.stage < len(graph.stages):
            raise SpecError(f"graph: stage {piece.stage} of {piece.kind} {piece.layer} is outside of the stages")


def _check_graph(plan: Plan) -> None:
    graph, model = plan.graph, plan.case.model
    if min(graph.tp, graph.cp, graph.ep, graph.etp) < 1:
        degrees = f"tp {graph.tp}, cp {graph.cp}, ep {graph.ep}, etp {graph.etp}"
        raise SpecError(f"graph: {degrees} must be at least 1")
    for position in graph.positions:
        if len({len(group) for group in position.ranks}) != 1 or not position.ranks[0]:
            raise SpecError(f"graph: position {position.name} has copies of unequal size")
        if any(list(group) != sorted(group) for group in position.ranks):
            raise SpecError(f"graph: position {position.name} lists ranks out of ascending order")
    for piece in graph.pieces:
        held, kind = graph.ep * graph.etp if piece.kind == "experts" else graph.tp, piece.kind
        for position in (graph.positions[p] for p in graph.stages[piece.stage]):
            if len(position.ranks[0]) % held:
                raise SpecError(f"graph: {len(position.ranks[0])} ranks of {position.name} hold {kind} in {held} parts")
    if moe_layers(model) and model.experts % graph.ep:
        raise SpecError(f"graph: {model.experts} experts % ep {graph.ep} is not 0")
    sharded = any(replica.sharded for replica in graph.replicas)
    if graph.replicas != assembly.replicas(graph, sharded=sharded, tied=model.tied_embeddings):
        raise SpecError("graph: replicas are not the ranks that hold the same parameters")


def _check_layout(plan: Plan) -> None:
    """SpecError unless the degrees that `layout` names are those of the graph."""
    graph, positions = plan.graph, len(plan.graph.positions)
    if isinstance(plan.layout, Disaggregated):
        sides = [
            sum(len(p.ranks[0]) for p in graph.positions if p.spread == spread) for spread in ("sequence", "token")
        ]
        degrees = {"attention_gpus": sides[0], "ffn_gpus": sides[1], "dp": len(graph.positions[0].ranks)}
        degrees["pairs"] = positions // 2
        rows = {
            edge.algorithm for edge, piece in zip(graph.edges, graph.pieces[1:], strict=True) if piece.kind == "experts"
        }
        degrees["deduplicate"] = rows == {"deduplicated"} if rows else plan.layout.deduplicate
    else:
        mesh = mesh_of(plan.layout)
        degrees = {"tp": graph.tp, "cp": graph.cp, "etp": graph.etp, "ep": graph.ep, "pp": positions}
        degrees |= {"vpp": len(graph.stages) // positions, "dp": plan.batch.shards}
        if isinstance(plan.layout, Piper):
            degrees = {name: degrees[name] for name in ("pp", "vpp", "ep")} | {"dp": degrees["dp"] // max(graph.ep, 1)}
        cut = [sum(p.kind == "attention" and p.stage == s for p in graph.pieces) for s in range(len(graph.stages))]
        if mesh.split and list(mesh.split) != cut:
            raise SpecError(f"layout: split {list(mesh.split)}, but the graph has stages of {cut} layers")
    degrees["micro_batch"] = plan.batch.micro_batch
    for name, value in degrees.items():
        if getattr(plan.layout, name) != value:
            raise SpecError(f"layout: {name} {getattr(plan.layout, name)}, but the graph and batch have {value}")
