"""Step time, peak memory and model FLOP beside `runs.csv`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from moeplan.analytic.factors import factors_of, on_classes
from moeplan.cost.compute import peak_flop_per_s
from moeplan.spec.model import moe_layers
from moeplan.spec.workload import Workload
from moeplan.validation.constants import told_with
from moeplan.validation.degrees import global_batch, seq_len
from moeplan.validation.disagreements import Disagreement, reason_of
from moeplan.validation.flop import Convention, counting, flop_per_token
from moeplan.validation.names import Names
from moeplan.validation.outcome import Outcome, Result, Skip, Skipped, skipped
from moeplan.validation.printed import counts_told, printed_bytes
from moeplan.validation.settings import Setting, memory_unit_bytes, setting
from moeplan.validation.stacks import Stacks
from moeplan.validation.steps import Forms, Steps, peak
from moeplan.validation.tables import Run

NOTHING = (
    f"nothing measured: {', '.join(name for name in Run.__struct_fields__ if name.startswith('measured'))} are empty"
)


class _Pair(NamedTuple):
    predicted: float
    measured: float
    notes: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


class Runs:
    """Predictions of rows; rows with the same model, machine and layout are worked out once."""

    def __init__(
        self,
        names: Names,
        conventions: dict[str, Convention],
        stacks: Stacks | None = None,
        disagreements: Sequence[Disagreement] = (),
        aside: Mapping[tuple[str, str], str] = MappingProxyType({}),
    ) -> None:
        """`conventions` by prefix of the id, Megatron-LM's for others; `stacks` knows what sources leave unsaid.

        Rows of `disagreements`, and those that `aside` has a reason for by id and measure, are scored with and without.
        """
        self.names = names
        self._disagreements = disagreements
        self._aside = aside
        self.stacks = stacks or Stacks()
        self._conventions = conventions
        self.steps = Steps()
        self.forms: dict[str, Forms] = {}
        """What the rows with a step time were priced as, by id."""

    def compare(self, run: Run) -> list[Result]:
        """All that the row has a measurement of, predicted or with the reason why not; a reason where it has none."""
        asked = (
            ("flop", told_flop(run) is not None, self._flop),
            ("step_time", has_time(run), self._step_time),
            ("peak_memory", run.measured_peak_mem_gb is not None, self._peak_memory),
        )
        found = [self._try(run, measure, price) for measure, published, price in asked if published]
        return found or [Skipped(run.id, "step_time", NOTHING)]

    def convention(self, run: Run) -> Convention:
        """How the row's source counts; as Megatron-LM, and memory as its notes say, where it is none of `stacks`."""
        prefix = run.id.split("-")[0]
        if self.stacks.knows(run) and prefix in self._conventions:
            return self._conventions[prefix]
        return Convention(prefix=prefix, counts=counts_told(run.notes))

    def _try(self, run: Run, measure: str, price: Callable[[Run], _Pair]) -> Result:
        try:
            cluster, model = self.names.cluster(run.hardware), self.names.model(run.model)
            self.names.calibration(run.hardware)
            pair = price(run)
        except Skip as skip:
            return skipped(run.id, measure, skip)
        return Outcome(
            run.id,
            measure,
            pair.predicted,
            pair.measured,
            model.name,
            cluster.gpu.name,
            "moe" if moe_layers(model) else "dense",
            "; ".join(pair.notes),
            self._listed(run, measure),
            pair.low,
            pair.high,
        )

    def _listed(self, run: Run, measure: str) -> str:
        return reason_of(run, measure, self._disagreements) or self._aside.get((run.id, measure), "")

    def _flop(self, run: Run) -> _Pair:
        return _Pair(self._flop_per_token(run, seq_len(run)), told_flop(run) or 0.0, (counting(self.convention(run)),))

    def _step_time(self, run: Run) -> _Pair:
        found = self.setting(run)
        self.forms[run.id] = forms = self.steps.forms(found, lambda workload: self.measured_s(run, workload))
        constants = self.steps.calibration(found.case).constants
        told = told_with(forms, on_classes(factors_of(constants)))
        return _Pair(told.step_s, self.measured_s(run), found.notes, told.low_s, told.high_s)

    def _peak_memory(self, run: Run) -> _Pair:
        found, convention = self.setting(run), self.convention(run)
        graph, peaks = peak(found)
        each = [printed_bytes(found.case, graph, p, value, convention.counts) for p, value in enumerate(peaks)]
        measured = (run.measured_peak_mem_gb or 0.0) * memory_unit_bytes(run)
        return _Pair(each[-1] if convention.memory == "last" else max(each), measured, found.notes)

    def _flop_per_token(self, run: Run, tokens: int) -> float:
        return flop_per_token(self.names.model(run.model), tokens, self.convention(run))

    def measured_s(self, run: Run, workload: Workload | None = None) -> float:
        """Seconds of the row's step: as printed, or from tokens/s, or from TFLOPS or MFU in the source's convention.

        An MFU is of the machine's bf16 peak. What a rate gives is for the batch and the sequence length of `workload`,
        those of the row by default: where neither was published, a rate says nothing of the step but only of a token.
        Skip where the row has none of these.
        """
        if run.measured_step_s:
            return run.measured_step_s
        sequences, length = (workload.global_batch, workload.seq_len) if workload else (global_batch(run), seq_len(run))
        tokens = sequences * length / run.gpus
        if run.measured_tokens_per_s_per_gpu:
            return tokens / run.measured_tokens_per_s_per_gpu
        if run.measured_tflops_per_gpu:
            return self._flop_per_token(run, length) * tokens / (run.measured_tflops_per_gpu * 1e12)
        if run.measured_mfu:
            peak = peak_flop_per_s(self.names.cluster(run.hardware).gpu, "bf16")
            return self._flop_per_token(run, length) * tokens / (run.measured_mfu / 100 * peak)
        raise Skip("no time published")

    def setting(self, run: Run) -> Setting:
        """The row as records; Skip and SpecError as `settings.setting`."""
        return setting(run, self.names, self.stacks)


def told_flop(run: Run) -> float | None:
    """FLOP per token that the row prints: TFLOPS over tokens per second; None where it lacks either."""
    if run.measured_tflops_per_gpu is None or run.measured_tokens_per_s_per_gpu is None:
        return None
    return run.measured_tflops_per_gpu * 1e12 / run.measured_tokens_per_s_per_gpu


def has_time(run: Run) -> bool:
    """Whether the row prints something that a step time follows from."""
    rates = run.measured_tokens_per_s_per_gpu, run.measured_tflops_per_gpu, run.measured_mfu
    return any(value is not None for value in (run.measured_step_s, *rates))
