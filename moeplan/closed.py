"""The closed form of a layout's step as users see it: seconds, an interval, and parts with their share and source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

from moeplan.analytic.factors import factors_of, on_classes
from moeplan.analytic.forecast import Forecast, forecast
from moeplan.analytic.form import form
from moeplan.by_hand import question
from moeplan.caveats import assumed_rates, batch_warnings, case_warnings
from moeplan.cost.pricing import Machine, Pricing
from moeplan.draft import dealt
from moeplan.errors import MoeplanError, SpecError
from moeplan.layout import Disaggregated, Layout, Mesh, Recompute
from moeplan.layouts import stages
from moeplan.mesh import mesh_of
from moeplan.optimizer.evaluate import usable_bytes
from moeplan.peaks import peak_of
from moeplan.resources.memory import closed_static_bytes
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.tables import Rows
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

ONLY_CLOSED: Final = ("zb-h1", "zb-h2", "zbv", "v-half", "v-min", "dualpipe")
"""Schedules of meshes that have a closed form and no order: they are neither simulated nor run."""
MEANING = {
    "gemm": "matrix products",
    "narrow_gemm": "matrix products in 8 or 4 bits",
    "attention": "scores and values",
    "stream": "passes over the HBM",
    "cast": "casts to 8 or 4 bits",
    "host": "launches that outlast kernels",
    "tensor": "tensor-parallel collectives",
    "context": "keys and values of other ranks",
    "expert": "dispatch and combine",
    "bubble": "the pipeline fills and drains",
    "hops": "rows of the neighbouring position",
    "gradients": "gradients summed, as far as they show",
    "parameters": "weights gathered, as far as they show",
    "optimizer": "its pass, and what lies between two steps",
    "straggling": "waiting for the slowest GPU",
}
"""What the seconds of a part are spent on."""
GIB = 1024**3
UNITS = {"gib": GIB, "gb": 1e9}
SIMULATED_TITLE = (
    "simulated: low s to high s should hold nine of ten steps; operations in the schedule's order, links shared, no"
    " stragglers"
)
PEAKS_TITLE = "HBM of one rank in closed form (GiB = 2^30 bytes, GB = 10^9); fits: no more than `memory.usable` allows"


class ClosedEstimate(NamedTuple):
    """One layout of one case under a schedule of `ONLY_CLOSED`."""

    schedule: str
    step: Forecast
    positions: Rows
    """`closed_positions`; none where their memory is not known."""
    note: str
    """What this schedule has not, and why."""
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, units in the names: the step and its parts, and `positions`, one row each."""
        told = self._asdict()
        del told["step"]
        return told | {"closed_form": closed_dict(self.step), "warnings": list(self.warnings)}

    def rows(self) -> Rows:
        """All in one table: the step with its interval, its parts, then the positions."""
        step = self.step
        whole = {"name": "step", "what": "the whole step", "seconds": step.step_s, "share": 1.0}
        interval = {"low_s": step.low_s, "high_s": step.high_s}
        memory = [{"name": row["position"], "what": "memory of one rank"} | row for row in self.positions]
        return [whole | interval, *closed_rows(step), *memory]


def closed_estimate(
    case: Case, calibration: Calibration, layout: Layout, *, schedule: str, recompute: Recompute | None = None
) -> ClosedEstimate | None:
    """All that is known of `layout` of `case` under a `schedule` of `ONLY_CLOSED`; None for two sides.

    SpecError as `closed_form`; where only the memory is not known, `note` says why.
    """
    step = closed_form(case, calibration, layout, schedule=schedule, recompute=recompute)
    if step is None or isinstance(layout, Disaggregated):
        return None
    note, positions = f"schedule {schedule!r} has a closed form alone: not simulated, cannot be run", []
    try:
        positions = closed_positions(case, layout, schedule, recompute or Recompute())
    except MoeplanError as error:
        note = f"{note}; no memory: {error}"
    short = max(((row["peak_gib"] - row["usable_gib"]) * GIB for row in positions), default=0.0)
    warnings = (
        *case_warnings(case, layout.pp),
        *batch_warnings(dealt(case, layout, stages(case, layout)), layout.pp),
        *assumed_rates(case, calibration),
        *([short_note(short)] if short > 0 else []),
    )
    return ClosedEstimate(schedule, step, positions, note, warnings)


def closed_positions(case: Case, layout: Mesh, schedule: str, recompute: Recompute) -> Rows:
    """One row per position under a schedule of `ONLY_CLOSED`: state and peak of one rank, and whether it fits.

    SpecError where the layout does not suit: in a V a position has two stages, which take two layers.
    """
    graph, peaks = peak_of(case, mesh_of(layout), recompute, schedule)
    usable, rows = usable_bytes(case), []
    for number, (position, peak) in enumerate(zip(graph.positions, peaks, strict=True)):
        sizes = {"static": closed_static_bytes(case, graph, schedule, number), "peak": peak}
        both = {f"{name}_{unit}": value / size for name, value in sizes.items() for unit, size in UNITS.items()}
        rows.append({"position": position.name, **both, "usable_gib": usable / GIB, "fits": peak <= usable})
    return rows


def short_note(short_bytes: float) -> str:
    """By how much the fullest rank exceeds what it may hold."""
    return f"does not fit: {short_bytes / GIB:.3g} GiB short per GPU"


def closed_form(
    case: Case,
    calibration: Calibration | str | Path,
    layout: Layout,
    *,
    schedule: str = "",
    recompute: Recompute | str | None = None,
) -> Forecast | None:
    """The step of `layout` of `case` in closed form, with the calibration's constants; None for two sides.

    Seconds. `calibration` may be the name of one; `recompute` may be text, as `moeplan estimate --recompute` takes it.
    `schedule`: 1F1B by default, interleaved with several virtual stages; those of `ONLY_CLOSED` too. Left out: what the
    simulator adds, the order of operations and contention. SpecError for degrees that do not suit and for a schedule
    without a closed form, with those that have one.
    """
    asked = question(case, calibration, layout, schedule, recompute)
    if isinstance(asked.layout, Disaggregated):
        return None
    name = schedule or ("interleaved" if asked.layout.vpp > 1 else "1f1b")
    machine = Machine(Fabric(build(case.cluster)), asked.calibration)
    return forecast_of(asked.case, machine, asked.layout, name, asked.recompute)


def forecast_of(case: Case, machine: Machine, layout: Layout, schedule: str, recompute: Recompute) -> Forecast:
    """As `closed_form`, of a mesh on a machine whose routes are known, so that they are searched once."""
    graph = stages(case, layout)
    priced = form(Pricing(case, graph, machine, recompute), dealt(case, layout, graph), schedule)
    return forecast(priced, on_classes(factors_of(machine.calibration.constants)))


def closed_rows(told: Forecast) -> Rows:
    """One row per part of the step, in the order of `MEANING`: seconds, share of the step, source."""
    return [
        {
            "name": part.name,
            "what": MEANING[part.name],
            "seconds": part.seconds,
            "share": part.seconds / told.step_s,
            "source": part.source,
        }
        for part in sorted(told.parts, key=lambda part: list(MEANING).index(part.name))
    ]


def closed_dict(told: Forecast | None) -> dict[str, Any] | None:
    """Plain numbers: `step_s`, `low_s`, `high_s` and `parts`; None where there is no closed form."""
    if told is None:
        return None
    return {"step_s": told.step_s, "low_s": told.low_s, "high_s": told.high_s, "parts": closed_rows(told)}


def closed_title(told: Forecast) -> str:
    """The step and its interval in one line, and why it is not the simulated one."""
    return (
        f"closed form: {told.step_s:.4g} s; nine of ten steps between {told.low_s:.4g} and {told.high_s:.4g} s; a sum"
        " without the order of operations, with stragglers and what lies between two steps"
    )


def check_order(schedule: str, family: str, orders: tuple[str, ...]) -> None:
    """SpecError unless `schedule` has an order that can be simulated, one of `orders` of `family`."""
    if schedule in orders:
        return
    closed = "" if family == "disaggregated" else f"; {', '.join(ONLY_CLOSED)} have a closed form alone"
    if closed and schedule in ONLY_CLOSED:
        raise SpecError(f"schedule {schedule!r} has a closed form alone; simulated and run are {', '.join(orders)}")
    raise SpecError(f"schedule {schedule!r} is not one of {family}: {', '.join(orders)}{closed}")
