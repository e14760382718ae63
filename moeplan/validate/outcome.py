"""What validation makes of one row: a prediction beside its measurement, or the reason why there is none."""

from __future__ import annotations

from typing import NamedTuple

MEASURES = (
    *("step_time", "step_time_no_constants", "step_time_left_out", "peak_memory"),
    *("flop", "gemm", "layers", "collectives", "parameters"),
)
"""What is compared: seconds (as told, without constants, with constants that never saw the model), bytes of one rank,
FLOP per token, seconds (products, layers, collectives), parameters."""


class Outcome(NamedTuple):
    """A prediction and a measurement of the same thing, in SI units."""

    id: str
    measure: str
    predicted: float
    measured: float
    model: str = ""
    accelerator: str = ""
    kind: str = ""
    """dense or moe; empty where there is no model."""
    note: str = ""
    """What the prediction leaves out of this row."""
    listed: str = ""
    """Why the published figure is known to disagree (`validate.disagreements`); empty for most."""

    low: float | None = None
    """Nine of ten measurements are expected between this and `high`; None where no interval is told."""
    high: float | None = None

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted / self.measured - 1

    @property
    def source(self) -> str:
        """The id up to its first dash: which publication the row is from."""
        return self.id.split("-")[0]


class Skipped(NamedTuple):
    """A measurement without a prediction."""

    id: str
    measure: str
    reason: str


class Skip(Exception):  # noqa: N818 - no error: a row may be left out
    """A row that cannot be predicted; the text is the reason, the same for all rows alike."""


Result = Outcome | Skipped
