"""What becomes of a row: numbers that can be compared, or a reason that is the same for all rows alike."""

from math import inf, nan

import pytest

from moeplan.errors import SpecError
from moeplan.validation.outcome import Outcome, Skip, Skipped, checked, skipping, without_numbers


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpu 'H100 SXM 80GB': no peak for fp4", "gpu 'H100 SXM 80GB': no peak for fp4"),
        ("etp 2 * ep 16 does not divide 1,024 GPUs", "etp N * ep N does not divide N GPUs"),
        ("capacity 0.01 is below 1, the mean", "capacity N is below N, the mean"),
        ("model.layers.3: 1,000.5 of Llama-3.1", "model.layers.3: N of Llama-N"),
    ],
)
def test_names_keep_their_digits(text, told):
    assert without_numbers(text) == told


def test_a_reason_has_no_settings_that_nobody_wrote():
    with pytest.raises(Skip, match=r"^Expected `float` >= N$"), skipping():
        raise SpecError("--set memory.mtp=false execution.capacity=0: Expected `float` >= 1")


@pytest.mark.parametrize("pair", [(1.0, 0.0), (1.0, -1.0), (0.0, 1.0), (nan, 1.0), (1.0, inf), (1.0, 5e-324)])
def test_only_numbers_above_0_are_compared(pair):
    why = "predicted or measured is nothing that can be compared"
    both = f"{why}: {pair[0]:g} beside {pair[1]:g}"
    assert checked(Outcome("A-1", "layers", *pair)) == Skipped("A-1", "layers", why, both)


def test_other_results_stay_as_they_are():
    for one in (Outcome("A-1", "layers", 2.0, 1.0), Skipped("A-1", "layers", "a reason")):
        assert checked(one) is one
