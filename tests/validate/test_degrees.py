"""The layout of a row, and what is taken where a cell is empty."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.spec.shipped import load_model
from moeplan.validation.degrees import (
    degrees,
    expert_parallel,
    global_batch,
    seq_len,
    stage_layers,
    virtual_stages,
    written_layout,
)
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import Run


def test_what_is_taken_where_nothing_is_published(run_row):
    bare = run_row(**dict.fromkeys(("pp", "ep", "etp", "micro_batch", "global_batch", "seq_len")))
    assert seq_len(bare) == 4096
    assert global_batch(bare) == 4 * 8
    assert global_batch(run_row(global_batch=None, tp=2, micro_batch=3)) == 4 * 2 * 2 * 3
    given_ = degrees(bare, load_model("tiny-moe"))
    assert (given_.tp, given_.pp, given_.vpp, given_.ep, given_.etp) == (None, None, None, 8, None)
    assert (given_.micro_batch, given_.split) == (1, None)


@pytest.mark.parametrize(
    ("model", "changes", "ep"),
    [
        ("tiny-moe", {"pp": None}, 8),
        ("tiny-moe", {}, 4),
        ("tiny-moe", {"tp": 2, "etp": None}, 2),
        ("deepseek-v2", {"gpus": 64}, 8),
    ],
)
def test_experts_are_spread_over_a_stages_first_gpus(run_row, model, changes, ep):
    assert expert_parallel(run_row(**changes), load_model(model)) == ep


@pytest.mark.parametrize(
    ("pp", "vpp", "text", "taken"),
    [
        (4, None, "", 1),
        (4, 5, "", 5),
        (4, None, "interleaved 1F1B", 8),
        (1, None, "interleaved 1F1B", 1),
        (61, 1, "", 1),
        (9, 7, "", 1),
        (16, 8, "", 8),
    ],
)
def test_virtual_stages(run_row, pp, vpp, text, taken):
    """61 layers: 63 slots with embedding and head. 4 x 8 stages have two each; of 9 x 7 two would have no layer."""
    run = run_row(pp=pp, vpp=vpp, dispatcher_or_overlap=text, gpus=8 * pp)
    assert virtual_stages(run, load_model("deepseek-v3")) == taken


def test_stages_that_would_hold_the_embedding_alone_are_fewer(run_row):
    """126 layers, embedding and head over 16 x 8 stages leave two without a layer; 16 x 4 have two slots each."""
    model = load_model("llama-3.1-405b")
    run = run_row(pp=16, vpp=8, gpus=64)
    assert virtual_stages(run, model) == 4
    assert stage_layers(run, model, 64) == (1, *[2] * 62, 1)


@pytest.mark.parametrize(
    ("model", "stages", "layers"),
    [
        ("deepseek-v2", 4, ()),
        ("deepseek-v3", 1, ()),
        ("deepseek-v3", 16, (*[4] * 15, 1)),
        ("deepseek-v3", 4, (16, 16, 16, 13)),
        ("deepseek-v3", 9, (6, *[7] * 7, 6)),
    ],
)
def test_layers_of_stages(run_row, model, stages, layers):
    assert stage_layers(run_row(), load_model(model), stages) == layers


def test_short_stages_are_the_last_positions(run_row):
    """61 layers on 8 positions of 4 stages: 3 stages of 1, all beside the head."""
    layers = stage_layers(run_row(pp=8, vpp=4), load_model("deepseek-v3"), 32)
    assert [sum(layers[position::8]) for position in range(8)] == [8, 8, 8, 8, 8, 8, 8, 5]


def test_a_written_layout_is_taken_where_it_fits(run_row):
    assert written_layout("Et*4|t*5|(t*6|)*5,t*4mL") == (4, 5, 6, 6, 6, 6, 6, 4)
    assert written_layout("Et|(tt|)*2mL") == (1, 2, 2, 0)
    model = load_model("tiny-moe")
    run = run_row(notes=f"layout E|t*{model.num_layers - 1}|tL")
    assert stage_layers(run, model, 2) == ()
    uneven = run_row(notes=f"x; layout Et|t*{model.num_layers - 1}L; y")
    assert stage_layers(uneven, model, 2) == (1, model.num_layers - 1)


@pytest.mark.parametrize("text", [f"E{'(' * 9}t*9999{')*9' * 9}L", f"E{'(' * 10**5}L", "Et*10000000L", "(t|)*99999999"])
def test_a_layout_without_end_is_left_out(text):
    with pytest.raises(Skip, match="longer than that of any model"):
        written_layout(text)


@given(st.integers(1, 12), st.integers(1, 12))
def test_every_layer_is_in_one_stage(pp, vpp):
    model = load_model("deepseek-v3")
    layers = stage_layers(Run(id="A-1", model="m", hardware="h", gpus=1), model, pp * vpp)
    assert layers == () or (len(layers) == pp * vpp and sum(layers) == model.num_layers and min(layers) > 0)
