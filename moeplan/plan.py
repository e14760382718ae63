"""The plan file: all that the simulator and the executor read.

`schema_version` is MAJOR.MINOR: whatever changes raises the minor, and plans of earlier minors are read; what can no
longer be read raises the major. Equal inputs give equal bytes outside `provenance`.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import structs

from moeplan import layout as layouts
from moeplan.errors import PlanVersionError, ScheduleError, SpecError
from moeplan.layout import Batch, Disaggregated, Layout, Piper, Recompute, StageGraph
from moeplan.mesh import mesh_of
from moeplan.overlap import Overlap
from moeplan.program import Program, lower
from moeplan.schedule import Steps, from_text
from moeplan.spec.case import Case, check_case
from moeplan.spec.cluster import ClusterSpec, num_ranks
from moeplan.spec.record import Record, convert, read_json, to_json, to_plain, write_whole

SCHEMA: Final = "moeplan.plan"
SCHEMA_VERSION = "1.1"


class ScheduleText(Record):
    """A schedule as text, one line per position; the line is what is simulated and run."""

    name: str
    positions: tuple[str, ...]


class Placement(Record):
    """Where each rank sits, by rank number."""

    nodes: tuple[int, ...]
    nics: tuple[int, ...]
    """NIC of its node that the rank sends by; -1 where the node has none."""


class Duration(Record):
    """Predicted seconds of one kind of operation on the pieces that share them."""

    kind: str
    phase: str
    pieces: tuple[int, ...]
    """Piece numbers; for transfers the piece before the edge, for collectives after the backward the replica."""
    seconds: float
    last_seconds: float
    """The same for the last micro-batch, which may be short."""
    communication_s: float = 0.0
    """The part of `seconds` that is communication inside the piece (tensor parallelism)."""
    source: str


class Predictions(Record):
    """What the step should cost."""

    step_s: float
    tokens_per_s: float
    mfu: float
    peak_flop_per_s: float
    """Per GPU, dense, of the training type: what the MFU is measured against."""
    model_flop: float
    """FLOP of the model per step, recomputation excluded, causal attention."""
    peak_hbm_bytes: tuple[float, ...]
    """Per position."""
    static_hbm_bytes: tuple[float, ...]
    """Per position: weights, gradients, optimizer state."""
    exposed_communication_s: float
    """Mean over ranks: nothing is computed and rows are on their way, or pieces exchange rows inside."""
    bubble: float
    """Share of the step, mean over ranks, in which a rank waits for other positions."""
    of_inputs: str = ""
    """Digest of the case, layout, batch and recompute rule that the durations were predicted for."""
    of_schedule: str = ""
    """Digest of the schedule text that was simulated."""


class Solver(Record):
    """How the layout was found."""

    status: str
    gap: float = 0.0
    bound_s: float = 0.0
    """Lower bound on the step from the continuous relaxation; 0 where it was not asked."""
    gpu_price_s: float = 0.0
    """Seconds that one more GPU would save, from the relaxation's duals."""
    nic_price_s: float = 0.0
    """Seconds that one more NIC would save."""
    evaluated: int = 0
    pruned: int = 0


class Provenance(Record):
    """Where the plan came from; the only part that may differ between equal inputs."""

    software: str = ""
    created: str = ""
    command: tuple[str, ...] = ()


class Plan(Record):
    """One layout of one case, with its schedule and what it should cost."""

    schema: Literal["moeplan.plan"]
    schema_version: str
    case: Case
    layout: Layout
    graph: StageGraph
    placement: Placement
    batch: Batch
    schedule: ScheduleText
    overlap: Overlap
    recompute: Recompute
    durations: tuple[Duration, ...]
    predictions: Predictions
    solver: Solver
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: Provenance = Provenance()


def world_size(plan: Plan) -> int:
    """Ranks that the plan uses."""
    return sum(len(group) for position in plan.graph.positions for group in position.ranks)


def steps_of(plan: Plan) -> Steps:
    """The plan's schedule text as steps; ScheduleError where it cannot be read."""
    lines = plan.schedule.positions
    return tuple(from_text(line, where=f"schedule of position {i}") for i, line in enumerate(lines))


def program_of(plan: Plan) -> Program:
    """The program lowered from the plan's own schedule text; ScheduleError where that is not a legal order."""
    return lowered(plan, steps_of(plan))


def lowered(plan: Plan, steps: Steps) -> Program:
    """The program of `steps` under the rules of `plan`; ScheduleError where they are not a legal order."""
    return lower(
        plan.graph,
        steps,
        microbatches=plan.batch.microbatches,
        overlap=plan.overlap,
        recompute=plan.recompute,
    )


def inputs_digest(plan: Plan) -> str:
    """SHA-256 of all that predictions depend on, durations included, and of the predictions."""
    return _digest_of(to_plain(plan))


def _digest_of(plain: dict[str, Any]) -> str:
    """As `inputs_digest`, of a plan as it stands in its file, whatever its version."""
    told = plain["predictions"] | {"of_inputs": "", "of_schedule": ""}
    names = ("case", "layout", "graph", "batch", "recompute", "overlap", "durations")
    return hashlib.sha256(b"".join(map(to_json, [*(plain[name] for name in names), told]))).hexdigest()


def signed(plan: Plan) -> Plan:
    """`plan` whose predictions say which inputs they are of."""
    return structs.replace(plan, predictions=structs.replace(plan.predictions, of_inputs=inputs_digest(plan)))


def schedule_digest(plan: Plan) -> str:
    """SHA-256 of the schedule text."""
    return hashlib.sha256(to_json(plan.schedule)).hexdigest()


def is_stale(plan: Plan) -> bool:
    """Whether the predictions were made for another schedule text than the plan's."""
    return plan.predictions.of_schedule not in ("", schedule_digest(plan))


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write `plan` to `path`, whole or not at all."""
    write_whole(Path(path), to_json(plan))


def read_plan(path: Path | str) -> Plan:
    """The plan in `path`, checked; SpecError, PlanVersionError or ScheduleError say what is wrong and where."""
    path = Path(path)
    raw = read_json(path)
    _check_version(raw, path)
    plan = convert(_upgraded(raw, path), Plan, where=str(path))
    try:
        check(plan)
    except (SpecError, ScheduleError) as error:
        raise type(error)(f"{path}: {error}") from None
    return plan


def check(plan: Plan) -> None:
    """SpecError or ScheduleError unless the parts of `plan` belong together."""
    check_case(plan.case)
    layouts.check_positive(plan.layout)
    _check_stages(plan)
    layouts.check(plan.case.model, plan.graph)
    _check_graph(plan)
    _check_batch(plan)
    _check_layout(plan)
    if world_size(plan) > num_ranks(plan.case.cluster):
        raise SpecError(f"plan: {world_size(plan)} ranks, its cluster has {num_ranks(plan.case.cluster)}")
    if plan.placement != place(plan.case.cluster, world_size(plan)):
        raise SpecError("placement: nodes and NICs are not those of the cluster's ranks in node order")
    _check_predictions(plan)
    program_of(plan)
    if plan.predictions.of_inputs not in ("", inputs_digest(plan)):
        raise SpecError("predictions: inputs were edited after they were made; run moeplan optimize again")


def _check_predictions(plan: Plan) -> None:
    told, positions = plan.predictions, len(plan.graph.positions)
    for name in ("peak_hbm_bytes", "static_hbm_bytes"):
        values = getattr(told, name)
        if len(values) not in (0, positions) or min(values, default=0.0) < 0:
            raise SpecError(f"predictions: {name} has {len(values)} values for {positions} positions, or one below 0")
    for name in ("step_s", "tokens_per_s", "mfu", "exposed_communication_s", "bubble"):
        if not 0 <= getattr(told, name) < float("inf"):
            raise SpecError(f"predictions: {name} {getattr(told, name)} is below 0 or not finite")


def place(cluster: ClusterSpec, world: int) -> Placement:
    """Ranks 0..world-1 in node order, each with the NIC that serves its GPU."""
    gpus, nics = cluster.node.gpus, cluster.node.nics
    return Placement(
        nodes=tuple(rank // gpus for rank in range(world)),
        nics=tuple(rank % gpus * nics // gpus if nics else -1 for rank in range(world)),
    )


def _check_batch(plan: Plan) -> None:
    dealt, first = plan.batch, plan.graph.positions[0].ranks
    shards = len(first) * len(first[0]) // plan.graph.tp
    expected = (
        layouts.batch(plan.case.workload.global_batch, dealt.micro_batch, shards) if dealt.micro_batch > 0 else None
    )
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
    if min(graph.tp, graph.ep, graph.etp) < 1:
        raise SpecError(f"graph: tp {graph.tp}, ep {graph.ep}, etp {graph.etp} must be at least 1")
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
    if model.dense_layers < model.num_layers and model.experts % graph.ep:
        raise SpecError(f"graph: {model.experts} experts % ep {graph.ep} is not 0")
    sharded = any(replica.sharded for replica in graph.replicas)
    if graph.replicas != layouts.replicas(graph, sharded=sharded, tied=model.tied_embeddings):
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
        degrees = {"tp": graph.tp, "etp": graph.etp, "ep": graph.ep, "pp": positions}
        degrees |= {"vpp": len(graph.stages) // positions, "dp": plan.batch.shards // max(mesh.cp, 1)}
        if isinstance(plan.layout, Piper):
            degrees = {name: degrees[name] for name in ("pp", "vpp", "ep")} | {"dp": degrees["dp"] // max(graph.ep, 1)}
        cut = [sum(p.kind == "attention" and p.stage == s for p in graph.pieces) for s in range(len(graph.stages))]
        if mesh.split and list(mesh.split) != cut:
            raise SpecError(f"layout: split {list(mesh.split)}, but the graph has stages of {cut} layers")
    degrees["micro_batch"] = plan.batch.micro_batch
    for name, value in degrees.items():
        if getattr(plan.layout, name) != value:
            raise SpecError(f"layout: {name} {getattr(plan.layout, name)}, but the graph and batch have {value}")


def _upgraded(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """`raw` as this version writes it; the digest of an older plan is compared with its own fields, and dropped.

    1.0: Piper's layout had the degrees of a colocated mesh.
    """
    if raw["schema_version"] == SCHEMA_VERSION:
        return raw
    try:
        told = raw["predictions"]
        if told["of_inputs"] not in ("", _digest_of(raw)):
            raise SpecError(f"{path}: predictions: inputs were edited after they were made; run moeplan optimize again")
        new = raw | {"schema_version": SCHEMA_VERSION, "predictions": told | {"of_inputs": ""}}
        if raw["layout"]["family"] == "piper":
            layout = dict(raw["layout"])
            others = [layout.pop(name) for name in ("tp", "cp", "etp")]
            if others != [1, 1, 1] or layout["dp"] % layout["ep"]:
                raise SpecError(f"{path}: layout: piper has tp, cp and etp 1, not {others}, and a dp that ep divides")
            new["layout"] = layout | {"dp": layout["dp"] // layout["ep"]}
    except KeyError:
        return raw  # what is missing is told by the record
    except (TypeError, AttributeError, ZeroDivisionError):
        raise SpecError(f"{path}: predictions and layout are not those of a plan; whole numbers are due") from None
    return new


def _check_version(raw: Any, path: Path) -> None:
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise SpecError(f"{path}: not a plan: schema is not {SCHEMA!r}")
    version = raw.get("schema_version")
    number = "(0|[1-9][0-9]{0,5})"
    match = re.fullmatch(rf"{number}\.{number}", version) if isinstance(version, str) else None
    if match is None:
        raise PlanVersionError(f"{path}: schema_version {version!r} is not MAJOR.MINOR such as {SCHEMA_VERSION}")
    major, minor = (int(n) for n in SCHEMA_VERSION.split("."))
    if (int(match[1]), int(match[2])) > (major, minor):
        raise PlanVersionError(f"{path}: plan version {version} is newer than {SCHEMA_VERSION}; upgrade moeplan")
    if int(match[1]) < major:
        raise PlanVersionError(f"{path}: plan version {version} is older than {major}.0 and cannot be read")
