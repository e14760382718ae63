"""Rows as moeplan's own records."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.layout import Recompute
from moeplan.spec.execution import Execution
from moeplan.spec.workload import Memory
from moeplan.validation.outcome import Skip
from moeplan.validation.settings import setting, vary
from moeplan.validation.stacks import Stacks
from moeplan.validation.tables import Run

MOST_SKIPPED = 0.03


@pytest.fixture
def own(names, run_row):
    """own(column=value, ...): the setting of a run of tiny-moe on 8 GPUs."""
    return lambda **changes: setting(run_row(**changes), names, Stacks())


@pytest.fixture(scope="module")
def published(names, stacks, published_runs):
    """Settings by id, and reasons by id."""
    found, reasons = {}, {}
    for run in published_runs.values():
        try:
            found[run.id] = setting(run, names, stacks)
        except Skip as skip:
            reasons[run.id] = str(skip)
    return found, reasons


def test_nearly_every_published_row_is_a_setting(published, published_runs):
    found, reasons = published
    assert set(found) | set(reasons) == set(published_runs)
    assert len(reasons) <= MOST_SKIPPED * len(published_runs)
    assert all(reasons.values())


def test_degrees_multiply_to_the_gpus_and_are_those_of_the_row(published, published_runs):
    for number, told in published[0].items():
        run, layout = published_runs[number], told.layout
        assert prod((layout.tp, layout.cp, layout.pp, layout.dp)) == run.gpus
        assert run.gpus % (layout.etp * layout.ep * layout.pp) == 0
        for name in ("tp", "pp", "ep", "etp", "dp", "cp"):
            if told.case.model.experts or name not in ("ep", "etp"):
                assert getattr(layout, name) == (getattr(run, name) or getattr(layout, name)), (number, name)


def test_the_table_has_every_kind_of_execution(published):
    told = published[0].values()
    kinds = {
        name: {getattr(s.case.execution, name) for s in told} for name in ("linear", "dispatcher", "graphs", "loss")
    }
    assert kinds["linear"] == {"same", "fp8", "fp8_block", "mxfp8", "nvfp4"}
    assert kinds["dispatcher"] == {"all_to_all", "deepep", "hybridep"}
    assert kinds["graphs"] == {"none", "layers", "step"}
    assert {s.case.memory.zero for s in told} == {0, 1, 2, 3}
    assert {s.schedule for s in told} >= {"1f1b", "interleaved", "dualpipe", "zbv", "v-half", "v-min", "zb-h1"}


def test_every_alternative_is_another_setting(published):
    for number, told in published[0].items():
        for entry in told.unknown:
            assert entry.alternatives, (number, entry)
            for alternative in entry.alternatives:
                assert vary(told, alternative)[:4] != told[:4], (number, alternative)


def test_a_row_with_every_cell_leaves_nothing_open(own):
    told = own(tp=1, vpp=2, recompute="none", dispatcher_or_overlap="alltoall; no overlap")
    assert (told.unknown, told.notes) == ((), ())


@pytest.mark.parametrize(
    ("changes", "open_"),
    [
        ({}, ["recompute", "dispatcher", "vpp", "tp", "overlap"]),
        ({"dp": 4}, ["recompute", "dispatcher", "vpp", "overlap"]),
        ({"dp": 4, "vpp": 1, "recompute": "none", "seq_len": 32768}, ["dispatcher", "overlap"]),
        ({"vpp": 1, "recompute": "none", "tp": 1, "seq_len": 32768}, ["dispatcher", "cp", "overlap"]),
        ({"vpp": 1, "recompute": "none", "tp": 1, "cp": 1}, ["dispatcher", "overlap"]),
        ({"vpp": 1, "recompute": "none", "tp": 1, "cp": 1, "dtype": None}, ["dispatcher", "dtype", "overlap"]),
        ({"pp": None, "micro_batch": None, "recompute": "none"}, ["micro_batch", "dispatcher", "tp", "pp", "overlap"]),
        ({"dispatcher_or_overlap": "DeepEP; PP schedule zbv", "recompute": "full"}, ["tp", "overlap"]),
        ({"dispatcher_or_overlap": "DeepEP; overlapped DP", "recompute": "full"}, ["vpp", "tp"]),
        (
            {"dispatcher_or_overlap": "DeepEP; FSDP", "recompute": "full", "vpp": 1, "tp": 2, "ep": 2, "etp": None},
            [],
        ),
        (
            {"dispatcher_or_overlap": "DeepEP", "recompute": "full", "vpp": 1, "tp": 2, "ep": 2, "etp": None},
            ["etp", "overlap"],
        ),
        ({"model": "llama-3.1-8b", "ep": None, "etp": None, "recompute": "none", "vpp": 1}, ["overlap", "tp"]),
    ],
)
def test_empty_cells_are_told(own, changes, open_):
    assert sorted(entry.name for entry in own(**changes).unknown) == sorted(open_)


@pytest.mark.parametrize("changes", [{"global_batch": 3}, {"micro_batch": 9}])
def test_a_batch_that_leaves_ranks_idle_is_no_run(own, changes):
    """4 data-parallel ranks."""
    own(global_batch=4)
    with pytest.raises(Skip, match="less than one micro-batch per data-parallel rank"):
        own(**changes)


def test_a_row_of_words_becomes_records(own):
    told = own(
        dtype="MXFP8",
        recompute="selective:moe+layernorm",
        dispatcher_or_overlap="hybridep ep_a2a_overlap cudagraph:full_iteration",
        notes="capacity factor 1.5",
    )
    assert told.case.execution == Execution(
        linear="mxfp8", dispatcher="hybridep", exchange="flat", graphs="step", hidden=("expert",), capacity=1.5
    )
    assert told.recompute == Recompute(ffn="full", modules=("norm", "shared_experts"))
    assert told.case.memory == Memory()
    assert told.schedule == "1f1b"
    assert own(dispatcher_or_overlap="FSDP8").case.memory == Memory(zero=3, bytes_per_parameter=16, weight_bytes=0)


def test_modules_that_predict_further_tokens_are_trained_where_the_model_has_them(own):
    layout = {"gpus": 64, "pp": 8, "ep": 8}
    assert own(model="deepseek-v3", **layout).case.memory.mtp
    assert not own(model="DeepSeekV3 (w/o MTP)", **layout).case.memory.mtp


def test_virtual_stages_without_layers_are_told(own):
    told = own(model="llama-3.1-405b", gpus=64, pp=16, vpp=8, ep=None, etp=None, recompute="none")
    assert told.layout.vpp == 4
    assert told.notes == ("fewer virtual stages, so that each has a layer",)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [({"dp": 3}, "dp is not"), ({"ep": 3}, "layout: "), ({"dtype": "INT8"}, "dtype"), ({"gpus": 12}, "hardware")],
)
def test_what_is_no_setting_has_a_reason(own, changes, reason):
    with pytest.raises(Skip, match=reason):
        own(**changes)


def test_varied_settings(own):
    told = own(vpp=1, dispatcher_or_overlap="ep_a2a_overlap")
    other = vary(
        told, ("layout.vpp=2", "recompute.modules=norm,activation", "execution.hidden+=tensor", "workload.seq_len=64")
    )
    assert (other.layout, other.schedule) == (structs.replace(told.layout, vpp=2, split=()), "interleaved")
    assert other.recompute == Recompute(modules=("norm", "activation"))
    assert other.case.execution.hidden == ("expert", "tensor")
    assert other.case.workload.seq_len == 64
    assert vary(other, ("execution.hidden-=expert",)).case.execution.hidden == ("tensor",)
    assert vary(told, ()) == told


@pytest.mark.parametrize("wrong", ["layout.vpp=99", "recompute.modules=router", "execution.graphs=some", "nothing=1"])
def test_varied_settings_are_checked(own, wrong):
    with pytest.raises(SpecError):
        vary(own(), (wrong,))


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4, None]),
    etp=st.sampled_from([1, None]),
)
def test_any_row_is_a_setting_over_its_gpus_or_has_a_reason(names, tp, pp, ep, etp):
    run = Run(id="A-1", model="tiny-moe", hardware="dgx-h100", gpus=8, tp=tp, pp=pp, ep=ep, etp=etp)
    expected = 8 % (tp * pp) == 0 and 8 % (pp * (etp or tp) * (ep or 1)) == 0
    if not expected:
        with pytest.raises(Skip, match="layout"):
            setting(run, names, Stacks())
        return
    layout = setting(run, names, Stacks()).layout
    assert layout.tp * layout.pp * layout.dp == 8
    assert (layout.tp, layout.pp) == (tp, pp)
