"""Parts of the executor against what others say."""

import pytest
import torch
from cases import model, plan_of, run_all
from hypothesis import given, settings
from hypothesis import strategies as st

from moeplan.layout import Colocated, Disaggregated
from moeplan.resources.parameters import total_parameters
from moeplan_exec import adam, data
from moeplan_exec.launch import fork
from moeplan_exec.parameters import all_shapes
from moeplan_exec.run import Options
from moeplan_exec.site import find, home_of, own_tokens, row_of


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_embeddings": True, "qk_norm": True},
        {"dense_layers": 2, "dense_width": 5, "shared_experts": 3},
        {"moe_every": 2, "dense_width": 5, "shared_experts": 3, "shared_width": 7},
    ],
)
def test_parameters_are_those_that_resources_count(changes):
    spec = model(**changes)
    assert sum(torch.Size(shape).numel() for shape in all_shapes(spec).values()) == total_parameters(spec)


def test_adam_is_that_of_torch():
    def body(start, report):
        random = data.generator("adam")
        values = torch.randn(7, generator=random, dtype=torch.float64)
        theirs = values.clone().requires_grad_()
        optimizer = torch.optim.Adam([theirs], lr=0.1, betas=adam.BETAS, eps=adam.EPSILON)
        moments = adam.moments_of(values)
        for step in range(1, 4):
            theirs.grad = torch.randn(7, generator=random, dtype=torch.float64)
            adam.update(values, theirs.grad, moments, step=step, lr=0.1)
            optimizer.step()
        return float((values - theirs.detach()).abs().max())

    assert fork(1, body)[0] < 1e-14


@settings(max_examples=40)
@given(
    layout=st.sampled_from(
        [
            Colocated(dp=6, ep=2),
            Disaggregated(attention_gpus=2, ffn_gpus=1, dp=2),
            Disaggregated(attention_gpus=1, ffn_gpus=2, dp=2),
            Disaggregated(attention_gpus=1, ffn_gpus=5),
        ]
    ),
    global_batch=st.integers(1, 20),
)
def test_every_token_has_one_home_and_one_row(layout, global_batch):
    plan = plan_of(model(experts=30), layout, 6, global_batch=global_batch, schedule="gpipe")
    sites = [find(plan, rank, torch.device("cpu"), torch.float64) for rank in range(6)]
    for microbatch in range(plan.batch.microbatches):
        for position in range(len(plan.graph.positions)):
            found = []
            for site in (s for s in sites if s.position == position):
                ids = own_tokens(site, microbatch)
                assert home_of(site, position, microbatch, ids).eq(site.index).all()
                assert row_of(site, microbatch, ids).tolist() == list(range(len(ids)))
                found += [(site.copy, int(i)) for i in ids]
            first = microbatch * plan.batch.shards
            assert len(set(found)) == len(found) == 4 * min(plan.batch.shards, global_batch - first)


def test_data_and_first_values_do_not_depend_on_the_asker():
    rows = data.sequences(1, 2, range(3), seq_len=8, vocab=32)
    assert torch.equal(rows[2], data.sequence(1, 2, 2, seq_len=8, vocab=32))
    assert rows.shape == (3, 9)
    assert not torch.equal(rows, data.sequences(1, 3, range(3), seq_len=8, vocab=32))
    assert data.sequences(1, 2, range(0), seq_len=8, vocab=32).shape == (0, 9)


def test_bf16_learns_on_both_sides_of_an_m2n():
    plan = plan_of(model(), Disaggregated(attention_gpus=1, ffn_gpus=1), 2, seq_len=8, global_batch=8)
    ranks = run_all(plan, Options(steps=12, dtype="bf16", lr=0.01, timeout_s=30, trace=False))
    losses = [step.loss for step in ranks[0][0].steps]
    assert losses[-1] < losses[0] - 0.3
    assert ranks[0][0].trace.spans == ()
