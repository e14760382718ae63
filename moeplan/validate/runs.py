"""Step time, peak memory and model FLOP beside `runs.csv`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from moeplan.by_hand import layout_of
from moeplan.cost.compute import peak_flop_per_s
from moeplan.cost.durations import predict
from moeplan.draft import outline, shape_of, spelled
from moeplan.errors import MoeplanError
from moeplan.estimator import usual_schedule
from moeplan.optimizer.bound import step_bound_s
from moeplan.optimizer.evaluate import footprint
from moeplan.schedules import make
from moeplan.spec.case import Case, check_case
from moeplan.spec.model import ModelSpec, moe_layers
from moeplan.spec.workload import Workload
from moeplan.validate.flop import Convention, flop_per_token
from moeplan.validate.names import Names
from moeplan.validate.outcome import Outcome, Result, Skip, Skipped
from moeplan.validate.settings import check_planned, degrees, global_batch, memory_unit_bytes, recompute_rule, seq_len
from moeplan.validate.tables import Run

MOST_ACTIONS = 200_000
"""Orders longer than this are left out: they would take seconds each."""


class _Pair(NamedTuple):
    predicted: float
    measured: float
    notes: tuple[str, ...] = ()


class Step(NamedTuple):
    """What moeplan says about the step of a row."""

    seconds: float
    """Longest path through the schedule, the gradients and the optimizer; transfers do not wait for each other."""
    peak_bytes: tuple[float, ...]
    """Of one rank at each pipeline stage."""
    exact: bool
    """Whether memory can be compared: see `settings.Rule`."""


class Runs:
    """Predictions of rows; rows with the same model, machine and layout are worked out once."""

    def __init__(self, names: Names, conventions: dict[str, Convention]) -> None:
        """`conventions` by prefix of the id; Megatron-LM's for a prefix that is not among them."""
        self.names = names
        self._conventions = conventions
        self._steps: dict[tuple[object, ...], Step | Skip] = {}

    def compare(self, run: Run) -> list[Result]:
        """All that the row has a measurement of, predicted or with the reason why not."""
        asked = (
            ("flop", told_flop(run) is not None, self._flop),
            ("step_time", has_time(run), self._step_time),
            ("peak_memory", run.measured_peak_mem_gb is not None, self._peak_memory),
        )
        return [self._try(run, measure, price) for measure, published, price in asked if published]

    def convention(self, run: Run) -> Convention:
        """How the row's source counts."""
        prefix = run.id.split("-")[0]
        return self._conventions.get(prefix, Convention(prefix=prefix))

    def _try(self, run: Run, measure: str, price: Callable[[Run], _Pair]) -> Result:
        try:
            cluster, model = self.names.cluster(run.hardware), self.names.model(run.model)
            self.names.calibration(run.hardware)
            pair = price(run)
        except Skip as skip:
            return Skipped(run.id, measure, str(skip))
        kind = "moe" if moe_layers(model) else "dense"
        return Outcome(
            run.id, measure, pair.predicted, pair.measured, model.name, cluster.gpu.name, kind, "; ".join(pair.notes)
        )

    def _flop(self, run: Run) -> _Pair:
        return _Pair(self._flop_per_token(run), told_flop(run) or 0.0)

    def _step_time(self, run: Run) -> _Pair:
        step = self.step(run)
        notes = [] if step.exact else ["recomputed modules taken as kept"]
        return _Pair(step.seconds, self.measured_s(run), (*notes, *self._left_out(run)))

    def _peak_memory(self, run: Run) -> _Pair:
        step = self.step(run)
        if not step.exact:
            raise Skip("recompute: memory of single modules is not planned")
        peak = step.peak_bytes[-1] if self.convention(run).memory == "last" else max(step.peak_bytes)
        return _Pair(peak, (run.measured_peak_mem_gb or 0.0) * memory_unit_bytes(run), self._left_out(run))

    def _left_out(self, run: Run) -> tuple[str, ...]:
        return ("without its MTP module",) if self.names.model(run.model).mtp_layers else ()

    def _flop_per_token(self, run: Run) -> float:
        return flop_per_token(self.names.model(run.model), seq_len(run), self.convention(run))

    def measured_s(self, run: Run) -> float:
        """Seconds of the row's step: as printed, or from tokens/s, or from TFLOPS or MFU in the source's convention.

        An MFU is of the machine's bf16 peak. Skip where the row has none of these.
        """
        if run.measured_step_s:
            return run.measured_step_s
        tokens = global_batch(run) * seq_len(run) / run.gpus
        if run.measured_tokens_per_s_per_gpu:
            return tokens / run.measured_tokens_per_s_per_gpu
        if run.measured_tflops_per_gpu:
            return self._flop_per_token(run) * tokens / (run.measured_tflops_per_gpu * 1e12)
        if run.measured_mfu:
            peak = peak_flop_per_s(self.names.cluster(run.hardware).gpu, "bf16")
            return self._flop_per_token(run) * tokens / (run.measured_mfu / 100 * peak)
        raise Skip("no time published")

    def step(self, run: Run) -> Step:
        """The step of the row; Skip where moeplan has no such model, machine, layout, element type or rule."""
        model, key = self.names.model(run.model), _key(run)
        if key not in self._steps:
            try:
                self._steps[key] = self._predicted(run, model)
            except Skip as skip:
                self._steps[key] = skip
            except MoeplanError as error:
                self._steps[key] = Skip(_without_numbers(str(error)))
        found = self._steps[key]
        if isinstance(found, Skip):
            raise found
        return found

    def _predicted(self, run: Run, model: ModelSpec) -> Step:
        check_planned(run)
        rule = recompute_rule(run.recompute)
        workload = Workload(seq_len=seq_len(run), global_batch=global_batch(run))
        case = check_case(Case(model=model, cluster=self.names.part(run.hardware, run.gpus), workload=workload))
        layout = layout_of(case, degrees(run, model))
        if run.dp and run.dp != layout.dp:
            raise Skip("dp is not what the other degrees leave")
        plan = outline(case, layout, schedule=usual_schedule(layout), recompute=rule.recompute)
        actions = 2 * len(plan.graph.stages) * plan.batch.microbatches
        if actions > MOST_ACTIONS:
            raise Skip(f"more than {MOST_ACTIONS:,} actions in a step")
        steps = make(plan.schedule.name, shape_of(layout, plan.graph, plan.batch.microbatches))
        plan = spelled(plan, steps)
        machine = self.names.machine(run.hardware, run.gpus)
        durations = predict(case, plan.graph, plan.batch, machine)
        plan = structs.replace(plan, durations=durations)
        return Step(step_bound_s(plan, steps, durations), footprint(plan, steps).peak, rule.exact)


def told_flop(run: Run) -> float | None:
    """FLOP per token that the row prints: TFLOPS over tokens per second; None where it lacks either."""
    if run.measured_tflops_per_gpu is None or run.measured_tokens_per_s_per_gpu is None:
        return None
    return run.measured_tflops_per_gpu * 1e12 / run.measured_tokens_per_s_per_gpu


def has_time(run: Run) -> bool:
    """Whether the row prints something that a step time follows from."""
    rates = run.measured_tokens_per_s_per_gpu, run.measured_tflops_per_gpu, run.measured_mfu
    return any(value is not None for value in (run.measured_step_s, *rates))


def _key(run: Run) -> tuple[object, ...]:
    """All that the prediction of a row's step depends on."""
    names = [name for name in Run.__struct_fields__ if name not in ("id", "source", "notes")]
    return tuple(getattr(run, name) for name in names if not name.startswith("measured"))


def _without_numbers(text: str) -> str:
    """`text` with N for each number, so that equal reasons of different rows are counted together."""
    return re.sub(r"\d[\d,.]*", "N", text)
