"""The plan: all that the simulator and the executor read, and what follows from it."""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal

from msgspec import structs

from moeplan.batch import Batch
from moeplan.layout import Layout, Recompute, StageGraph
from moeplan.overlap import Overlap
from moeplan.program import Program, lower
from moeplan.schedule import Steps, from_text
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, hosts_of, nic_of, node_at
from moeplan.spec.record import Record, to_json, to_plain
from moeplan.tiers import Tiers, tiers_of

SCHEMA: Final = "moeplan.plan"
SCHEMA_VERSION = "1.4"


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
    spread: float = 0.0
    """One sigma of the logarithm of `step_s` (`analytic.spread`); 0 in plans that do not tell it."""
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
    tiers: tuple[Tiers, ...] = ()
    """How the ranks of each group that exchanges rows by nodes stand on the network, in the order of `tiers_in`."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: Provenance = Provenance()

    def __repr__(self) -> str:
        case, told, family = self.case, self.predictions, self.layout.__struct_config__.tag
        where = f"{case.model.name} on {world_size(self)} GPUs of {case.cluster.name}"
        return f"Plan({where}, {family}, {self.schedule.name}: {told.step_s:.4g} s)"


def tiers_in(graph: StageGraph, cluster: ClusterSpec) -> tuple[Tiers, ...]:
    """The tiers of all groups of positions at which rows go by nodes, in the order of their ranks."""
    found = {
        group
        for i, edge in enumerate(graph.edges)
        if edge.kind in ("dispatch", "combine") and edge.algorithm in ("two_level", "halo", "halo_chunked")
        for position in graph.stages[graph.pieces[i].stage]
        for group in graph.positions[position].ranks
    }
    return tuple(tiers_of(cluster, group) for group in sorted(found))


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
    return digest_of(to_plain(plan))


def digest_of(plain: dict[str, Any]) -> str:
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


def place(cluster: ClusterSpec, world: int) -> Placement:
    """Ranks 0..world-1 in node order, each with the NIC that serves its GPU."""
    gpus, special = cluster.node.gpus, bool(cluster.kinds or cluster.without_nics)
    nodes = [node_at(cluster, host) for host in hosts_of(cluster)] if special else [cluster.node] * cluster.nodes
    return Placement(
        nodes=tuple(rank // gpus for rank in range(world)),
        nics=tuple(nic_of(nodes[rank // gpus], rank % gpus) for rank in range(world)),
    )
