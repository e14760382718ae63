"""What validation makes of one row: a prediction beside its measurement, or the reason why there is none."""

from __future__ import annotations

from typing import NamedTuple

MEASURES = ("step_time", "peak_memory", "flop", "gemm", "collectives", "parameters")
"""What is compared: seconds, bytes of one rank, FLOP per token, seconds, seconds, parameters."""


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
