"""Words of a run's row: what each class of them means, and that every published word is read."""

import pytest

from moeplan.validation import words
from moeplan.validation.outcome import Skip
from moeplan.validation.unread import unread


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
        ("Megatron-LM; no FlashAttention", {"execution.flash_attention=false"}),
        ("flash_attn=false", {"execution.flash_attention=false"}),
        ("unfused attention", {"execution.flash_attention=false"}),
        ("FlashAttention", set()),
        ("FlashAttention-2", {"execution.attention_kernel=flash2"}),
        ("Flash Attention v2", {"execution.attention_kernel=flash2"}),
        ("FA2", {"execution.attention_kernel=flash2"}),
        ("FlashAttention-3", set()),
        ("no distributed optimizer", {"memory.zero=0"}),
        ("use_distributed_optimizer", {"memory.zero=1"}),
        ("no distributed optimizer; ZeRO-1", {"memory.zero=1"}),
        ("fused kernels", {"execution.kernels=fused"}),
        ("no fused kernels", set()),
        (
            "NeMo; memory.bytes_per_parameter=16; execution.loss=fused",
            {"memory.bytes_per_parameter=16", "execution.loss=fused"},
        ),
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
        ({"notes": "no capacity factor"}, None),
        ({"notes": "capacity factor: none"}, None),
        ({"notes": "capacity factor of 1.5."}, 1.5),
        ({"dispatcher_or_overlap": "moe_expert_capacity_factor=2"}, 2.0),
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
        ("overlapped DP, TP and PP communication; NeMo", ("gradients", "tensor")),
        ("overlapping gradients and parameters", ("gradients", "parameters")),
        ("overlapped layers of experts", ("expert",)),
    ],
)
def test_what_runs_behind_compute(run_row, text, names):
    assert words.hidden(run_row(dispatcher_or_overlap=text)) == names


ALL = ("expert", "gradients", "tensor")


@pytest.mark.parametrize(
    ("text", "without"),
    [
        *((text.replace("X", "TP"), "tensor") for text in (
            "no X overlap", "X overlap off", "without X overlap", "X overlap disabled", "X overlap=off",
            "X overlap = 0",            "X_overlap=false", "X comm overlap: False", "disabled X overlap",
            "X overlap is off", "overlap of X is off",
            "X overlap (off)", "X overlap not used", "w/o X comm. overlap", "overlap X=off",
            "no AsyncX", "no X8 overlap",
        )),
        *((text, "expert") for text in ("no overlap", "without overlap", "overlap disabled", "overlap=0", "nooverlap")),
        *((text, "expert") for text in ("no EP overlap", "EP A2A overlap off", "no_ep_overlap", "EP not overlapped")),
        *((text, "gradients") for text in ("no DP overlap", "overlap_grad_reduce=false", "--no-overlap-grad-reduce")),
    ],
)  # fmt: skip
def test_what_is_said_not_to_be_hidden_is_not(run_row, text, without):
    run = run_row(dispatcher_or_overlap=f"DeepEP; {text}, CUDA graphs")
    assert words.hidden(run) == ()
    assert words.hidden(run, ALL) == tuple(name for name in ALL if name != without)
    assert {"execution.dispatcher=deepep", "execution.graphs=layers"} <= set(words.execution_settings(run))


def test_a_negation_reaches_no_further_than_what_it_is_about(run_row):
    found = {
        text: words.hidden(run_row(dispatcher_or_overlap=text), ALL)
        for text in ("TP overlap, no EP overlap", "EP overlap on, TP overlap off", "no TP/EP overlap", "no PP overlap")
    }
    assert list(found.values()) == [("gradients", "tensor"), ("expert", "gradients"), ("gradients",), ALL]
    told = words.execution_settings(run_row(dispatcher_or_overlap="no overlap DeepEP, no TP, CUDA graphs"))
    assert {"execution.dispatcher=deepep", "execution.graphs=layers"} <= set(told)


@pytest.mark.parametrize(
    "text",
    ["no X", "without X", "X off", "X=false", "X: disabled", "w/o X", "X not used", "never X", "X (disabled)", "not X"],
)
@pytest.mark.parametrize(
    "word",
    ["DeepEP", "HybridEP", "torch.compile", "FSDP", "ZeRO-3", "loss fusion", "token drop", "zero bubble", "DualPipe"],
)
def test_a_word_that_is_negated_says_nothing(run_row, text, word):
    run = run_row(dispatcher_or_overlap=text.replace("X", word))
    assert words.execution_settings(run) == ["execution.linear=same"]
    assert (words.schedule_named(run), words.hidden(run), words.sharded(run)) == (None, (), False)


@pytest.mark.parametrize("text", ["no CUDA graphs", "CUDA graphs off", "cudagraph=false", "without TE graphs"])
def test_graphs_that_are_off_are_none(run_row, text):
    assert "execution.graphs=none" in words.execution_settings(run_row(dispatcher_or_overlap=text))


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("ZeRO 3", 3),
        ("ZeRO stage 3", 3),
        ("zero-3", 3),
        ("zero3", 3),
        ("zero_stage=2", 2),
        ("ZeRO: 1", 1),
        ("ZeRO-0", 0),
    ],
)
def test_stages_of_zero(run_row, text, stage):
    run = run_row(dispatcher_or_overlap=f"DeepSpeed {text}; DeepEP")
    assert f"memory.zero={stage}" in words.execution_settings(run)
    assert words.sharded(run) == (stage == 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ZeRO 9", "dispatcher_or_overlap: ZeRO 9: stages are 0 to 3"),
        ("zero-stage 4", "ZeRO 4: stages"),
        ("capacity factor 0", "capacity factor: 0 is no number from 1 to 1000"),
        ("capacity_factor=1e9", "capacity factor: 1e9 is no number"),
        ("capacity factor of 0.5", "capacity factor: 0.5 is"),
        ("capacity factor -1", "capacity factor: -1 is"),
        ("capacity factor 1x", "capacity factor: 1x is"),
    ],
)
def test_numbers_that_cannot_be_are_reasons(run_row, text, reason):
    with pytest.raises(Skip) as caught:
        words.execution_settings(run_row(dispatcher_or_overlap=text))
    assert reason in caught.value.told


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
        ("Zero Bubble", "zb-h1"),
        ("zero_bubble; 1F1B", "zb-h1"),
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


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", ()),
        ("HybridEP; no_ep_overlap cudagraph:transformer_engine:['attn', 'mamba']", ()),
        ("FSDP (no reshard after fwd) + TP + CP + interleaved PP; ZeRO stage 3; capacity factor 1.25", ()),
        ("interleaved 1F1B, TP comm overlap, asymmetric embed/loss stages; GA 144", ()),
        ("DeepEP; frobnicate on; warp-drive=3", ("frobnicate", "warp-drive")),
        ("Overlapp TP", ("overlapp",)),
    ],
)
def test_words_that_nothing_is_made_of(run_row, text, left):
    assert unread(run_row(dispatcher_or_overlap=text)) == left


def test_few_published_rows_have_words_that_are_not_understood(published_runs):
    strange = [run for run in published_runs.values() if unread(run)]
    assert len(strange) < 0.1 * len(published_runs)


@pytest.mark.parametrize("text", ["overlap " * 5000, "no " * 20000, "no_a" * 10000 + "overlap", "overlap no " * 3000])
def test_long_cells_are_read_too(run_row, text):
    run = run_row(dispatcher_or_overlap=text + "; DeepEP; zero-3")
    assert words.execution_settings(run)[1:] == ["execution.dispatcher=deepep", "memory.zero=3"]
    assert set(words.hidden(run)) <= {"expert"}
    assert not {"overlap", "deepep"} & set(unread(run))


@pytest.mark.parametrize(
    "text", ["Megatron-LM; no FlashAttention; DeepSpeed", "PyTorch; FA2; fused kernels; memory.zero=2; zero_stage=1"]
)
def test_software_by_name_is_understood(run_row, text):
    assert not unread(run_row(dispatcher_or_overlap=text))


@pytest.mark.parametrize(
    ("text", "divided"),
    [("no sequence parallelism", False), ("sequence_parallel=false", False), ("sequence parallel", True)],
)
def test_a_row_says_whether_tensor_parallel_ranks_divide_norms(run_row, text, divided):
    row = run_row(dispatcher_or_overlap=text)
    assert ("execution.sequence_parallel=false" in words.execution_settings(row)) != divided
    assert unread(row) == ()
