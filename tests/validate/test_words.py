"""Words of a run's row: what each class of them means, and that every published word is read."""

import pytest

from moeplan.validation import words
from moeplan.validation.outcome import Skip


@pytest.mark.parametrize(
    ("dtype", "linear"),
    [
        ("", "same"),
        ("BF16", "same"),
        ("amp_bf16", "same"),
        ("FP16/BF16", "same"),
        ("FP8", "fp8"),
        ("FP8-CS", "fp8"),
        ("FP8 tensorwise", "fp8"),
        ("FP8 rowwise?dynamic", "fp8"),
        ("FP8-blockwise", "fp8_block"),
        ("FP8 (1x128/128x128) + BF16", "fp8_block"),
        ("MXFP8", "mxfp8"),
        ("FP8-blockwise/MX", "mxfp8"),
        ("NVFP4", "nvfp4"),
    ],
)
def test_element_types(dtype, linear):
    assert words.linear(dtype) == linear


def test_an_unknown_element_type_is_a_reason_to_skip():
    with pytest.raises(Skip, match="dtype"):
        words.linear("INT8")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("alltoall(or n/a) no_ep_overlap", {"execution.dispatcher=all_to_all"}),
        ("HybridEP; EP A2A 1F1B overlap ON; CUDA graphs", {"execution.dispatcher=hybridep", "execution.graphs=layers"}),
        ("flex", {"execution.dispatcher=deepep"}),
        ("flex/HybridEP", {"execution.dispatcher=hybridep"}),
        ("TE + DeepEP + FlexAttn", {"execution.dispatcher=deepep"}),
        ("baseline alltoall; +loss fusion; +DeepEP", {"execution.dispatcher=deepep", "execution.loss=fused"}),
        ("NCCL alltoall, no graphs", {"execution.dispatcher=all_to_all", "execution.graphs=none"}),
        ("hybridep cudagraph:full_iteration:None", {"execution.dispatcher=hybridep", "execution.graphs=step"}),
        ("cudagraph:transformer_engine:['attn']", {"execution.graphs=layers"}),
        ("FSDP8 + torch.compile", {"execution.kernels=compiled", "memory.zero=3"}),
        ("FSDP FULL_SHARD; GA 1", {"memory.zero=3"}),
        ("FSDP (no reshard after fwd) + TP", {"memory.zero=2"}),
        ("FSDP2 shard 4; LBS 2", {"memory.zero=3", "memory.optimizer_shards=4"}),
        ("ZeRO-1; no TP", {"memory.zero=1"}),
        ("interleaved 1F1B", set()),
    ],
)
def test_software_of_a_row(run_row, text, settings):
    found = words.execution_settings(run_row(dispatcher_or_overlap=text))
    assert set(found) == {"execution.linear=same", *settings}


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"model": "Mixtral (tokendrop)"}, 1.0),
        ({"notes": "capacity factor 1.25 token-drop"}, 1.25),
        ({"notes": "force-balanced routing, token-dropless"}, None),
        ({"notes": "alltoall, dropless"}, None),
    ],
)
def test_dropped_tokens(run_row, changes, factor):
    found = [s for s in words.execution_settings(run_row(**changes)) if s.startswith("execution.capacity")]
    assert found == ([] if factor is None else [f"execution.capacity={factor}"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("hybridep ep_a2a_overlap cudagraph:full_iteration:None", ("expert",)),
        ("hybridep no_ep_overlap", ()),
        ("HybridEP; EP A2A 1F1B overlap ON; CUDA graphs", ("expert",)),
        ("HybridEP; overlap ON; offload", ("expert",)),
        ("HybridEP; overlap OFF; CUDA graphs", ()),
        ("NCCL alltoall, EP overlap + delay_wgrad", ("expert",)),
        ("HybridEP 32 SM; EP overlap OFF; TE graphs", ()),
        ("interleaved 1F1B, TP comm overlap; GA 112", ("tensor",)),
        ("FSDP8+AsyncTP8, compile", ("tensor",)),
        ("FSDP8+TP8 vanilla, compile", ()),
        ("DualPipe bidirectional PP; DeepEP", ("expert",)),
        ("alltoall", ()),
    ],
)
def test_what_runs_behind_compute(run_row, text, names):
    assert words.hidden(run_row(dispatcher_or_overlap=text)) == names


def test_a_rows_words_go_before_what_its_software_usually_hides(run_row):
    usually = ("gradients", "tensor", "expert")
    assert words.hidden(run_row(dispatcher_or_overlap="TP8 vanilla, no overlap"), usually) == ("gradients",)
    assert words.hidden(run_row(), usually) == ("expert", "gradients", "tensor")


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("PP schedule 1f1b", None),
        ("PP schedule vpp3", None),
        ("PP schedule v-half", "v-half"),
        ("PP schedule v-min", "v-min"),
        ("PP schedule zbv", "zbv"),
        ("PP schedule zero-bubble", "zb-h1"),
        ("DualPipe; DeepEP", "dualpipe"),
    ],
)
def test_schedules(run_row, text, schedule):
    assert words.schedule_named(run_row(dispatcher_or_overlap=text)) == schedule


def test_every_published_element_type_and_dispatcher_is_read(published_runs):
    """Rows of models with experts either name a dispatcher, or one of a few words that name none."""
    silent = set()
    for run in published_runs.values():
        words.linear(run.dtype)
        if run.ep and run.ep > 1 and not words.named_last(words.DISPATCHERS, words.said(run)):
            silent.add(run.dispatcher_or_overlap.partition(" ")[0].partition("(")[0])
    assert silent <= {"", "NeMo/Megatron", "MCore", "TP+EP+DP", "FSDP+EP", "PP", "1F1B", "all"} | {
        word for word in silent if word.startswith("+")
    }
