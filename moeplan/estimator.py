"""What one layout given by hand would cost: parameters, memory by bucket and seconds by kind, per pipeline position."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import structs

from moeplan.analytic.forecast import Forecast
from moeplan.analytic.spread import interval, sure
from moeplan.by_hand import question, rule_text
from moeplan.caveats import ASSUMPTIONS, assumed_rates, calibration_warnings, fit_warning, mfu_basis, warnings_of
from moeplan.closed import SIMULATED_TITLE, check_order, closed_dict, closed_rows, closed_title, forecast_of, short_note
from moeplan.cost.durations import Machine, loads, predict
from moeplan.draft import outline, shape_of, spelled
from moeplan.errors import SpecError
from moeplan.exchanges import exchange_text
from moeplan.layout import Disaggregated, Layout, Recompute
from moeplan.layouts import FAMILIES, RECORDS, family_of
from moeplan.optimizer.candidate import MOST_ACTIONS, describe
from moeplan.optimizer.evaluate import fitted, predictions, simulate, usable_bytes
from moeplan.plan import Plan, lowered, signed, world_size
from moeplan.resources.memory import (
    Beside,
    Live,
    beside,
    held_parameters,
    host_bytes,
    peak_activations,
    state_bytes,
    tracks,
)
from moeplan.resources.parameters import active_parameters, counted, total_parameters
from moeplan.schedules import make
from moeplan.simulate.by_kind import ORDER, seconds_by_kind
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.spec.execution import Execution
from moeplan.spec.model import moe_layers
from moeplan.spec.override import settings_text
from moeplan.spec.workload import Memory
from moeplan.tables import Rows, cell, heading, html_lines, html_table
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

if TYPE_CHECKING:
    import pandas as pd


GIB = 1024**3


class Bytes(NamedTuple):
    """HBM of one rank by what it is for, at its fullest moment."""

    weights: float
    gradients: float
    main: float
    """Master weights in fp32."""
    optimizer: float
    """Moments."""
    gathered: float
    """Whole weights and gradients of running layers, where ranks divide them (ZeRO 3)."""
    workspaces: float
    """What kernels keep for good."""
    activations: float
    routing: float
    """Router and permutation."""
    logits: float
    """Logits, loss and their gradients."""
    working: float
    """Gradients and what is computed again."""
    buffers: float
    """Rows in flight."""


USUAL = ("weights", "gradients", "main", "optimizer", "activations", "working", "buffers")
"""Buckets that tables show even where they are empty."""


class Stage(NamedTuple):
    """One rank of one pipeline position over one step."""

    name: str
    layers: tuple[int, ...]
    parameters: float
    bytes: Bytes
    """By bucket: all that PyTorch's allocator gives out."""
    beside: Beside
    """What the GPU's memory holds more: the allocator's reserve, communicators, the driver's context."""
    host_bytes: float
    """Optimizer state of this rank in the host's memory."""
    seconds: Mapping[str, float]
    """Busy seconds by kind; they may overlap. `exposed` and `waiting` are parts of the step: nothing is computed."""


class Estimate(NamedTuple):
    """One layout of one case."""

    plan: Plan
    stages: tuple[Stage, ...]
    closed_form: Forecast | None = None
    """The step without its order; None where there is none, as for two sides."""

    @property
    def worst(self) -> int:
        """The position whose ranks hold most bytes: it decides whether the layout fits."""
        return max(range(len(self.stages)), key=lambda i: sum(self.stages[i].bytes))

    @property
    def short_bytes(self) -> float:
        """By how much the fullest rank exceeds the usable HBM, or with what lies beside tensors all HBM; 0: it fits."""
        case, fullest = self.plan.case, self.stages[self.worst]
        held = sum(fullest.bytes)
        return max(0.0, held - usable_bytes(case), held + sum(fullest.beside) - case.cluster.gpu.hbm_bytes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, units in the names: the step, its `closed_form`, `positions`, one row each, and `warnings`."""
        closed, warnings = closed_dict(self.closed_form), list(self.plan.warnings)
        return {**estimate_facts(self), "closed_form": closed, "positions": estimate_rows(self), "warnings": warnings}

    @property
    def notes(self) -> tuple[str, ...]:
        """What stands below the tables: what a user should know, what is not simulated, and how much is short."""
        short = (short_note(self.short_bytes),) if self.short_bytes else ()
        return (*(text for text in self.plan.warnings if text != fit_warning(self.plan)), *short)

    def __repr__(self) -> str:
        plan, told = self.plan, self.plan.predictions
        low_s, high_s = interval(told.step_s, told.spread)
        fits = short_note(self.short_bytes) if self.short_bytes else "fits"
        return (
            f"Estimate({plan.case.model.name} on {plan.case.cluster.name}, {family_of(plan.layout).NAME}"
            f" {describe(plan.layout, plan.case.model)}: {told.step_s:.4g} s ({low_s:.4g} to {high_s:.4g}),"
            f" {sum(self.stages[self.worst].bytes) / GIB:.4g} GiB of {usable_bytes(plan.case) / GIB:.4g}, {fits})"
        )

    def to_dataframe(self) -> pd.DataFrame:
        """One row per position."""
        import pandas as pd

        return pd.DataFrame(estimate_rows(self))

    def _repr_html_(self) -> str:
        facts = [{"what": heading(k), "value": cell(v, k)} for k, v in estimate_facts(self).items()]
        memory, spent = estimate_tables(self)
        tables = [
            html_table(facts, title=SIMULATED_TITLE),
            html_table(memory, title=HBM_TITLE),
            html_table(spent, title=SECONDS_TITLE),
        ]
        if self.closed_form is not None:
            tables.append(html_table(closed_rows(self.closed_form), title=closed_title(self.closed_form)))
        return "".join(tables) + html_lines(self.notes)


def estimate(
    case: Case,
    calibration: Calibration | str | Path,
    layout: Layout,
    *,
    schedule: str = "",
    recompute: Recompute | str | None = None,
) -> Estimate:
    """`layout` of `case`, simulated; whether it fits is told, not demanded.

    `calibration` may be the name of one; `recompute` may be text, as `moeplan estimate --recompute` takes it.
    `schedule` is the family's usual one by default. SpecError where the degrees or the schedule do not suit.
    """
    case, measured, layout, name, rule = question(case, calibration, layout, schedule, recompute)
    name = name or usual_schedule(layout)
    family = RECORDS[type(layout)]
    check_order(name, family, FAMILIES[family].SCHEDULES)
    machine = Machine(Fabric(build(case.cluster)), measured)
    plan = outline(case, layout, schedule=name, recompute=rule)
    actions = 2 * len(plan.graph.stages) * plan.batch.microbatches
    if actions > MOST_ACTIONS:
        raise SpecError(f"layout: {actions:,} actions in a step; at most {MOST_ACTIONS:,} are simulated")
    steps = make(name, shape_of(layout, plan.graph, plan.batch.microbatches))
    plan = fitted(plan, machine, tracks(steps))
    durations = predict(case, plan.graph, plan.batch, machine, plan.recompute)
    plan = structs.replace(spelled(plan, steps), durations=durations)
    program = lowered(plan, steps)
    timeline = simulate(plan, program)
    plan = sure(structs.replace(plan, predictions=predictions(plan, steps, program, timeline)), machine)
    warnings = (*warnings_of(plan), *assumed_rates(case, measured), *calibration_warnings(case, measured))
    plan = signed(structs.replace(plan, assumptions=ASSUMPTIONS, warnings=warnings))
    kept = peak_activations(case, plan.graph, tracks(steps), plan.recompute, loads(case, plan.graph, plan.batch, 0))
    busy = seconds_by_kind(plan, program, timeline)
    stages = [_stage(plan, number, kept[number], busy[number]) for number in range(len(plan.graph.positions))]
    mesh = not isinstance(layout, Disaggregated)
    return Estimate(plan, tuple(stages), forecast_of(case, machine, layout, name, plan.recompute) if mesh else None)


def _stage(plan: Plan, number: int, live: Live, busy: Mapping[str, float]) -> Stage:
    held = Bytes(*state_bytes(plan.case, plan.graph, number), *live)
    return Stage(
        plan.graph.positions[number].name,
        layers_at(plan, number),
        parameters_at(plan, number),
        held,
        beside(plan.case, plan.graph, number, sum(held)),
        host_bytes(plan.case, plan.graph, number),
        busy,
    )


def usual_schedule(layout: Layout) -> str:
    """AF-Pipe between two sides; in a mesh interleaved where a position has several chunks, else 1F1B."""
    if isinstance(layout, Disaggregated):
        return "af-pipe"
    return "interleaved" if layout.vpp > 1 else "1f1b"


def layers_at(plan: Plan, position: int) -> tuple[int, ...]:
    """Layers of which `position` holds attention or FFN."""
    graph = plan.graph
    held = {p.layer for p in graph.pieces if position in graph.stages[p.stage]}
    return tuple(sorted(layer for layer in held if layer < plan.case.model.num_layers))


def parameters_at(plan: Plan, position: int) -> float:
    """Parameters that one rank of `position` holds."""
    graph = plan.graph
    mine = [replica for replica in graph.replicas if position in replica.positions]
    return sum(held_parameters(plan.case, graph, replica, position) for replica in mine)


def expert_data_parallel(plan: Plan) -> int:
    """Ranks that hold the same experts (EDP)."""
    held = [len(r.groups[0]) for r in plan.graph.replicas if r.parameters == "experts"]
    return held[0] if held else 1


def estimate_facts(told: Estimate) -> dict[str, Any]:
    """The whole step in a few numbers."""
    plan, worst = told.plan, sum(told.stages[told.worst].bytes)
    model, predicted = plan.case.model, plan.predictions
    low_s, high_s = interval(predicted.step_s, predicted.spread)
    return {
        "model": model.name,
        "parameters": total_parameters(model),
        "active_parameters": active_parameters(model),
        "counted": counted(model),
        "cluster": plan.case.cluster.name,
        "gpus": world_size(plan),
        "layout": f"{plan.layout.__struct_config__.tag} {describe(plan.layout, model)}",
        "data_parallel": plan.batch.shards,
        **({"expert_data_parallel": expert_data_parallel(plan)} if moe_layers(model) else {}),
        "schedule": plan.schedule.name,
        "microbatches": plan.batch.microbatches,
        "recompute": rule_text(plan.recompute),
        **({"exchange": exchange_text(plan)} if moe_layers(model) else {}),
        "execution": settings_text(plan.case.execution, Execution()),
        "memory": settings_text(plan.case.memory, Memory()),
        "step_s": predicted.step_s,
        "low_s": low_s,
        "high_s": high_s,
        "tokens_per_s": predicted.tokens_per_s,
        "model_flop": predicted.model_flop,
        "mfu": predicted.mfu,
        "mfu_of": mfu_basis(plan.case, predicted.peak_flop_per_s),
        "exposed_communication_s": predicted.exposed_communication_s,
        "bubble": predicted.bubble,
        "fullest_position": told.stages[told.worst].name,
        "peak_hbm_gib": worst / GIB,
        "peak_hbm_gb": worst / 1e9,
        "usable_hbm_gib": usable_bytes(plan.case) / GIB,
        "fits": told.short_bytes == 0,
        "short_gib": told.short_bytes / GIB,
    }


def estimate_rows(told: Estimate) -> list[dict[str, Any]]:
    """One row per position: parameters, bytes by bucket in GiB, seconds by kind; the fullest is marked."""
    kinds = [kind for kind in ORDER if any(kind in stage.seconds for stage in told.stages)]
    return [
        {
            "position": stage.name,
            "worst": number == told.worst,
            "layers": len(stage.layers),
            "parameters": round(stage.parameters),
            **{f"{bucket}_gib": value / GIB for bucket, value in stage.bytes._asdict().items()},
            "peak_gib": sum(stage.bytes) / GIB,
            "peak_gb": sum(stage.bytes) / 1e9,
            **{f"{bucket}_gib": value / GIB for bucket, value in stage.beside._asdict().items()},
            "device_gib": (sum(stage.bytes) + sum(stage.beside)) / GIB,
            "host_gib": stage.host_bytes / GIB,
            **{f"{kind}_s": stage.seconds.get(kind, 0.0) for kind in kinds},
        }
        for number, stage in enumerate(told.stages)
    ]


HBM_TITLE = (
    "HBM of one rank (* fullest; GiB = 2^30 bytes, GB = 10^9); peak: tensors at their fullest moment; device: with what"
    " lies beside them"
)
SECONDS_TITLE = (
    "seconds of one rank by kind; they may overlap, but exposed and waiting do not; tensor parallel is work here"
)


def estimate_tables(told: Estimate) -> tuple[Rows, Rows]:
    """Two tables, one row per position: bytes, and seconds; the fullest position is marked with *."""
    memory, spent, rows = [], [], estimate_rows(told)
    rare = {f"{bucket}_gib" for bucket in (*Bytes._fields, "host") if bucket not in USUAL}
    empty = {"position", "worst"} | {column for column in rare if not any(row[column] for row in rows)}
    for row in rows:
        name = {"position": f"{row['position']}{' *' if row['worst'] else ''}"}
        memory.append(name | {k: v for k, v in row.items() if k not in empty and k[-2:] != "_s"})
        spent.append(name | {k: v for k, v in row.items() if k.endswith("_s")})
    return memory, spent
