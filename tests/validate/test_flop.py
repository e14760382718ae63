"""FLOP per token in each source's own convention."""

import pytest
from msgspec.structs import replace

from moeplan.resources.work import model_flop_per_token
from moeplan.spec.shipped import load_model
from moeplan.validation.disagreements import read_disagreements, reason_of
from moeplan.validation.flop import Convention, convention_rows, flop_per_token, read_conventions
from moeplan.validation.names import PUBLISHED
from moeplan.validation.runs import Runs, told_flop
from moeplan.validation.settings import seq_len

HALF, FULL = Convention(prefix="X"), Convention(prefix="X", attention="full")
WITHOUT = Convention(prefix="X", mtp="left out")


@pytest.mark.parametrize(
    ("name", "tokens", "convention", "gigaflop"),
    [
        ("DeepSeek-V3", 4096, WITHOUT, 249.8),
        ("DeepSeek-V3", 4096, HALF, 260.0),
        ("DeepSeek-V3", 4096, Convention(prefix="X", attention="full", mtp="left out"), 280.5),
        ("Qwen3-235B-A22B", 4096, HALF, 148.0),
        ("Qwen3-30B-A3B", 4096, HALF, 23.0),
        ("Mixtral-8x7B (vocab 32000)", 4096, HALF, 79.7),
        ("Mixtral-8x7B (vocab 32000)", 4096, FULL, 82.9),
        ("Mixtral-8x22B", 4096, HALF, 242.2),
        ("Mixtral-8x22B", 4096, FULL, 250.7),
        ("LLAMA3_8B", 8192, HALF, 51.5),
        ("LLAMA3_8B", 8192, FULL, 57.9),
        ("LLAMA3_70B", 8192, HALF, 449.2),
        ("LLAMA3_70B", 8192, FULL, 481.6),
        ("LLAMA3.1_405B", 8192, HALF, 2524.0),
        ("Kimi_K2", 4096, HALF, 204.5),
        ("DeepSeek-V2 236B", 4096, HALF, 155.0),
        ("DeepSeek-V2-Lite", 4096, HALF, 16.4),
        ("Nemotron-4-340B", 4096, FULL, 2104.6),
    ],
)
def test_figures_that_megatrons_formula_gives(names, name, tokens, convention, gigaflop):
    assert flop_per_token(names.model(name), tokens, convention) / 1e9 == pytest.approx(gigaflop, rel=0.003)


@pytest.mark.parametrize(
    "number",
    [
        "BRG-001",
        "BRG-010",
        "BRG-053",
        "BRG-229",
        "BRG-233",
        "AUT-007",
        "N24-001",
        "N24-010",
        "DSV-001",
        "BRG-028",
        "BRG-058",
        "BRG-012",
        "BSK-007",
        "MOS-001",
        "MOS-010",
    ],
)
def test_printed_tflops_over_printed_tokens(runs, names, published_runs, number):
    """Half or full attention, with and without the module that predicts a further token, models of two matrices."""
    run = published_runs[number]
    ours = flop_per_token(names.model(run.model), seq_len(run), runs.convention(run))
    assert ours == pytest.approx(told_flop(run), rel=0.003)


def test_the_router_is_not_counted():
    model = load_model("tiny-moe")
    counted = model_flop_per_token(model, 64) - flop_per_token(model, 64, HALF)
    assert counted == 6 * model.hidden * model.experts * model.num_layers


def test_full_attention_doubles_scores_and_values_of_layers_without_a_window():
    tiny, windowed = load_model("tiny-moe"), load_model("gpt-oss-20b")
    core = 6 * 2 * 4 * 16 * 64 / 2  # queries and output of 4 heads of 16, 64 tokens
    assert flop_per_token(tiny, 64, FULL) - flop_per_token(tiny, 64, HALF) == pytest.approx(4 * core)
    core = 6 * 2 * 64 * 64 * 4096 / 2
    assert flop_per_token(windowed, 4096, FULL) - flop_per_token(windowed, 4096, HALF) == pytest.approx(12 * core)


def test_unknown_sources_count_as_megatron_does(runs, run_row):
    assert runs.convention(run_row(id="NEW-1")) == Convention(prefix="NEW")


def test_hybrids_count_as_built_unless_the_source_takes_megatrons_formula():
    """It takes 2 hidden for the inner width of Mamba-2, 5,376 for 4,096, and no matrix that joins in MTP modules."""
    model = load_model("nemotron-3-nano")
    built, printed = (Convention(prefix="X", hybrid=hybrid) for hybrid in ("as built", "megatron"))
    wider = 23 * (1280 * (6 * 2688 + 7 * 128) - 2 * 4 * 6144)
    assert flop_per_token(model, 8192, printed) - flop_per_token(model, 8192, built) == pytest.approx(3 * wider)
    further = replace(model, mtp_layers=2)
    less = flop_per_token(further, 8192, built) - flop_per_token(further, 8192, printed)
    assert less == pytest.approx(3 * (2 * 4 * 2688**2 - wider))
    dense = load_model("llama-3.1-8b")
    assert flop_per_token(dense, 8192, printed) == flop_per_token(dense, 8192, built)


def test_figures_known_to_disagree_are_listed_with_their_reason(runs, published_runs):
    known = read_disagreements(PUBLISHED / "disagreements.csv")
    assert reason_of(published_runs["BRG-087"], "flop", known).startswith("the source's own formula")
    assert reason_of(published_runs["BRG-005"], "flop", known) == ""
    assert reason_of(published_runs["BRG-087"], "step_time", known) == ""
    assert reason_of(published_runs["BRG-186"], "flop", known) == ""


def test_every_source_says_what_it_counts():
    rows = {row["of"]: row for row in convention_rows()}
    assert rows["MOS"]["TFLOPS"] == "all pairs of attention, MTP counted, no router"
    assert rows["AUT"]["TFLOPS"] == "causal half of attention, MTP left out, no router"
    assert all(row["MFU_of"] for row in rows.values())


def test_unlisted_flop_agree(names, published_runs):
    """Median within 0.3 %, nine of ten within 1 %; at most a quarter of the rows is listed."""
    known = read_disagreements(PUBLISHED / "disagreements.csv")
    ours = Runs(names, read_conventions(PUBLISHED / "conventions.csv"), disagreements=known)
    printed = [run for run in published_runs.values() if told_flop(run)]
    found = [row for run in printed for row in ours.compare(run) if row.measure == "flop" and hasattr(row, "error")]
    good = sorted(abs(row.error) for row in found if not row.listed)
    assert good[len(good) // 2] < 0.003
    assert good[int(0.9 * len(good))] < 0.01
    assert len(found) - len(good) <= 0.25 * len(printed)
