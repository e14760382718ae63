"""What validation makes of one row: a prediction beside its measurement, or the reason why there is none."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from moeplan.errors import MoeplanError

MOST_APART = 1e12
"""A prediction and a measurement further apart than this factor are not of the same thing."""
NUMBER = r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)"
"""A number that stands alone; digits inside a name, as in H100 or fp8, are none."""
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
    """Nine of ten measurements are expected between this and `high`; None where no interval is told,
    as for all but step times."""
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
    """The same for all rows alike."""
    told: str = ""
    """The same with the values of this row; empty where the reason says all."""


class Skip(Exception):  # noqa: N818 - no error: a row may be left out
    """A row that cannot be predicted: the reason, the same for all rows alike, and the same with the row's values."""

    def __init__(self, reason: str, told: str = "") -> None:
        """`told` is `reason` where that says all."""
        super().__init__(reason)
        self.told = told or reason


Result = Outcome | Skipped


def checked(result: Result) -> Result:
    """`result`, or a row without a prediction where its two numbers are not both finite, above 0 and comparable."""
    if isinstance(result, Skipped):
        return result
    both = (result.predicted, result.measured)
    if all(0 < value < math.inf for value in both) and 1 / MOST_APART < both[0] / both[1] < MOST_APART:
        return result
    alike = "predicted or measured is nothing that can be compared"
    return Skipped(result.id, result.measure, alike, f"{alike}: {result.predicted:g} beside {result.measured:g}")


def without_numbers(text: str) -> str:
    """`text` with N for every number, so that rows alike have the same reason; names keep their digits."""
    return re.sub(NUMBER, "N", text)


def plainly(error: MoeplanError) -> str:
    """What `error` says without settings that nobody wrote.

    What follows from a row's words is applied as settings of `--set`, whose errors begin with that option.
    """
    return re.sub(r"^--set [^:]*: ", "", str(error))


def reason(error: MoeplanError) -> str:
    """What `error` says as the reason of a row and of all rows alike: as `plainly`, without numbers."""
    return without_numbers(plainly(error))


def skipped(number: str, measure: str, skip: Skip) -> Skipped:
    """The row `number` without a prediction of `measure`."""
    return Skipped(number, measure, str(skip), skip.told)


@contextmanager
def skipping() -> Iterator[None]:
    """Inside, what a layout, its price or its schedule refuse is a reason to leave the row out: Skip, no error."""
    try:
        yield
    except MoeplanError as error:
        raise Skip(reason(error), plainly(error)) from None
