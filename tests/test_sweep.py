"""The split by sequence length: its rows are single answers, and the balanced split moves towards attention."""

import pytest

from moeplan.errors import SpecError
from moeplan.planner import optimize
from moeplan.plots.lengths import plot_split_by_length
from moeplan.spec.shipped import load_calibration
from moeplan.spec.workload import Memory
from moeplan.sweep import at_length, split_by_length

LENGTHS = (4096, 8192, 16384)


@pytest.fixture(scope="module")
def case(make_case):
    return make_case(8, seq_len=4096, global_batch=16, model="mixtral-8x7b", num_layers=4)


@pytest.fixture(scope="module")
def calibration():
    return load_calibration("h800")


@pytest.fixture(scope="module")
def frame(case, calibration):
    return split_by_length(case, calibration, LENGTHS)


@pytest.fixture(scope="module")
def nothing_fits(make_case, calibration):
    case = make_case(8, seq_len=4096, global_batch=16, model="mixtral-8x7b", num_layers=4, memory=Memory(usable=1e-7))
    return split_by_length(case, calibration, LENGTHS)


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    yield plt.subplots()[1]
    plt.close("all")


def test_tokens_per_step_stay(frame, case):
    assert list(frame.seq_len) == list(LENGTHS)
    assert set(frame.seq_len * frame.global_batch) == {4096 * 16}
    assert at_length(case, 4096) == case


@pytest.mark.parametrize("number", range(len(LENGTHS)))
def test_a_row_is_what_one_search_finds(number, frame, case, calibration):
    row = frame.loc[number]
    ranking = optimize(at_length(case, LENGTHS[number]), calibration, families=["disaggregated"])
    plan = ranking.best
    assert plan is not None
    assert (row.step_s, row.tokens_per_s) == (plan.predictions.step_s, plan.predictions.tokens_per_s)
    assert row.attention_gpus == plan.layout.attention_gpus * plan.layout.dp
    assert row.ffn_gpus == plan.layout.ffn_gpus * plan.layout.dp
    assert row.attention_per_ffn == row.attention_gpus / row.ffn_gpus
    assert row.recompute == f"{plan.recompute.attention}/{plan.recompute.ffn}"


def test_the_balanced_split_moves_towards_attention(frame):
    """DisagMoE (arXiv 2605.11005), section 5.7: FLOP per token grow with the length in attention, not in the FFN."""
    assert frame.balanced_attention_per_ffn.is_monotonic_increasing
    assert frame.balanced_attention_per_ffn.is_unique
    ratio = frame.balanced_attention_gpus / frame.balanced_ffn_gpus
    assert list(frame.balanced_attention_per_ffn) == list(ratio)


def test_the_balanced_split_shares_all_gpus_where_compute_decides(frame):
    """C_a / M = C_f / N has M + N = W: no GPU is left over."""
    assert list(frame.balanced_attention_gpus + frame.balanced_ffn_gpus) == pytest.approx([8] * len(LENGTHS))


def test_lengths_at_which_nothing_fits_stay_in_the_table(nothing_fits, frame):
    assert list(nothing_fits.seq_len) == list(LENGTHS)
    assert not nothing_fits.fits.any()
    assert (
        nothing_fits[["attention_gpus", "ffn_gpus", "attention_per_ffn", "step_s", "tokens_per_s"]]
        .isna()
        .all(axis=None)
    )
    assert list(nothing_fits.columns) == list(frame.columns)
    assert list(nothing_fits.balanced_ffn_gpus) == list(frame.balanced_ffn_gpus)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((1024, 1000), "1000 does not divide 65536 tokens per step"),
        ((0,), "0 does not divide"),
        ((-4,), "-4 does not"),
        ((), "is empty"),
    ],
)
def test_lengths_that_do_not_divide_the_tokens_are_refused(lengths, message, case, calibration):
    with pytest.raises(SpecError, match=f"seq_lens: {message}"):
        split_by_length(case, calibration, lengths)


def test_the_figure_has_one_line_per_split_and_says_what_its_axes_are(frame, axes):
    assert plot_split_by_length(frame, axes) is axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("sequence length (tokens)", "GPUs with attention (%)")
    assert [line.get_label() for line in axes.lines] == [text.get_text() for text in axes.get_legend().get_texts()]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["4K", "8K", "16K"]
    best, even = (list(line.get_ydata()) for line in axes.lines)
    assert best == pytest.approx(list(100 / (1 + 1 / frame.attention_per_ffn)))
    assert even == pytest.approx(list(100 / (1 + 1 / frame.balanced_attention_per_ffn)))


def test_the_figure_makes_its_own_axes_and_keeps_others_as_they_are(frame, axes):
    shuffled = frame.iloc[[2, 0, 1]]
    other = plot_split_by_length(shuffled)
    assert other is not axes
    assert not axes.lines
    assert list(other.lines[0].get_xdata()) == list(LENGTHS)


def test_what_does_not_fit_has_no_point(nothing_fits, axes):
    plot_split_by_length(nothing_fits, axes)
    best, even = (line.get_ydata() for line in axes.lines)
    assert len(best) == 3
    assert all(value != value for value in best)
    assert all(0 < value < 100 for value in even)
