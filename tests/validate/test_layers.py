"""Single layers and kernels against what they are made of."""

import pytest

from moeplan.cost import communication as network
from moeplan.cost.compute import attention_share
from moeplan.errors import SpecError
from moeplan.resources.kernels import Compute
from moeplan.spec.shipped import load_calibration
from moeplan.validation.layers import Shape, predict_layer, shape_of
from moeplan.validation.names import PUBLISHED
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import Layer, read_table

PASSES: tuple[tuple[str, ...], ...] = ((), ("backward_ms",), ("forward_ms",))
CONFIG = "tokens/GPU 4096, hidden 2048, 64 experts top-6, ffn 1408, EP8, SwiGLU"


def layer(**changes):
    row = {"id": "OWN-1", "hardware": "dgx-h100", "gpus": 8, "layer": "MoE layer (router+dispatch+experts+combine)"}
    row |= {"config": CONFIG, "dtype": "BF16", "dispatcher": "NCCL alltoall", "forward_ms": "2", "backward_ms": "3"}
    return Layer(**row | changes)


def seconds(names, **changes):
    return predict_layer(layer(**changes), names).predicted


def test_a_shape_is_read_whichever_way_it_is_written():
    expected = Shape(4096, 2048, 64, 6, 1408, 8)
    assert shape_of(layer()) == shape_of(layer(config=CONFIG.replace("tokens/GPU 4096", "4096 tokens/GPU"))) == expected
    with pytest.raises(Skip, match="top_k, ep not published"):
        shape_of(layer(config="tokens/GPU 4096, hidden 2048, 64 experts, ffn 1408"))


def test_a_time_is_forward_and_backward(names):
    assert predict_layer(layer(), names).measured == pytest.approx(5e-3)
    assert predict_layer(layer(backward_ms=""), names).measured == pytest.approx(2e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer": "moe.dispatch (x)"},
        {"layer": "moe.grouped_gemm (x)"},
        {"layer": "moe.router (x)"},
        {"layer": "attention (x)", "config": "deepseek-v3 MoE layers, seq 4096, micro-batch 1"},
        {"layer": "MLA fused attention seq 4096", "forward_ms": "500 TFLOPS", "backward_ms": "400 TFLOPS"},
    ],
)
def test_one_pass_alone_is_compared_with_that_pass(names, changes):
    both, first, second = (predict_layer(layer(**changes | {k: "" for k in empty}), names) for empty in PASSES)
    assert first.predicted + second.predicted == pytest.approx(both.predicted)
    assert first.measured + second.measured == pytest.approx(both.measured)
    assert 0 < first.predicted < both.predicted


@pytest.mark.parametrize("column", ["forward_ms", "backward_ms"])
@pytest.mark.parametrize("text", ["abc", "n/a", "0", "-1", "nan", "inf", "1e400", "1_0", "400 TFLOPS", "2 ms"])
def test_a_time_is_milliseconds_above_0(names, column, text):
    with pytest.raises(SpecError, match=r"(forward|backward)_ms: '.*' is not a"):
        predict_layer(layer(**{column: text}), names)


@pytest.mark.parametrize("text", ["0 TFLOPS", "TFLOPS", "-4 TFLOPS", "nan TFLOPS", "inf TFLOPS"])
def test_a_rate_is_above_0(names, text):
    with pytest.raises(SpecError, match="is not a rate above 0"):
        predict_layer(layer(forward_ms=text, backward_ms="400 TFLOPS"), names)


@pytest.mark.parametrize(
    ("old", "new"), [("EP8", "EP0"), ("4096", "4,09"), ("4096", "4k"), ("64", "0"), ("1408", "1.5")]
)
def test_counts_are_whole_numbers_above_0(names, old, new):
    with pytest.raises(SpecError, match=f"config: '.*{new}.*': '{new.removeprefix('EP')}' is no whole number above 0"):
        predict_layer(layer(config=CONFIG.replace(old, new)), names)


def test_thousands_may_have_commas(names):
    assert shape_of(layer(config=CONFIG.replace("4096", "4,096"))) == shape_of(layer())


def test_a_layer_is_more_than_its_products_and_four_exchanges(names):
    flop = 3 * 6 * 4096 * 6 * 2048 * 1408
    size = 4096 * 6 * 2048 * 2
    machine = names.machine("dgx-h100", 8)
    exchanges = 4 * network.all_to_all(*machine, [range(8)], size).seconds
    least = flop / 989e12 + exchanges
    assert least < seconds(names) < 3 * least


def test_a_gate_is_a_third_matrix(names):
    assert seconds(names) > seconds(names, config=CONFIG.replace("SwiGLU", "GELU"))
    assert seconds(names, config=CONFIG.replace("SwiGLU", "SwiGLU off?")) == seconds(
        names, config=CONFIG.replace("SwiGLU", "GELU")
    )


def test_what_sends_a_token_once_is_faster_than_what_sends_every_copy(names):
    assert seconds(names, dispatcher="DeepEP") < seconds(names)


def test_attention_by_its_rates(names):
    """One forward and a backward of 2.5 times its FLOP, at the shares of the calibration."""
    row = layer(
        layer="MLA fused attention seq 4096", config="causal", forward_ms="500 TFLOPS", backward_ms="400 TFLOPS"
    )
    found = predict_layer(row, names)
    core = Compute("attention", 1.0, 0.0, sequence=4096, head_dim=160)
    shape = load_calibration("h100").attention
    reached = [attention_share(shape, core._replace(direction=one)) * 989 for one in ("forward", "backward")]
    assert found.predicted / found.measured == pytest.approx(
        (1 / reached[0] + 2.5 / reached[1]) / (1 / 500 + 2.5 / 400)
    )


def test_names_that_nobody_explains_are_errors(names):
    with pytest.raises(SpecError, match="model 'mine'"):
        predict_layer(layer(layer="attention (x)", config="mine MoE layers, seq 4096, micro-batch 1"), names)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"forward_ms": "", "backward_ms": ""}, "no time published"),
        ({"layer": "moe.shared_expert (layer 3)"}, "several launches"),
        ({"layer": "attn.core (layer 3)"}, "not planned"),
        ({"layer": "one MoE layer", "forward_ms": "100 TFLOPS per GPU", "backward_ms": ""}, "shape not published"),
        ({"layer": "notify"}, "beside other work"),
        ({"hardware": "Intel Gaudi 2"}, "no cluster with it ships"),
        ({"dtype": "INT4"}, "dtype: neither 16 bits nor a known narrower type"),
        ({"dtype": "NVFP4"}, "gpu 'H100 SXM 80GB': no peak for fp4"),
        ({"config": CONFIG.replace("EP8", "EP16")}, "do not go together"),
        ({"config": CONFIG.replace("top-6", "top-65")}, "do not go together"),
        ({"gpus": 16384, "config": CONFIG.replace("EP8", "EP16384").replace("64", "16384")}, "too many GPUs"),
    ],
)
def test_rows_that_are_not_compared(names, changes, reason):
    with pytest.raises(Skip, match=reason):
        predict_layer(layer(**changes), names)


def test_published_attention_kernels_are_near(names):
    """MLA by cuDNN on H100 and GB200, and the flash kernels in DeepSeek's own trace."""
    rows = {row.id: row for row in read_table(PUBLISHED / "layers.csv", Layer)}
    for name in ("LAY-079", "LAY-080", "LAY-081", "LAY-TRACE-5"):
        assert abs(predict_layer(rows[name], names).error) < 0.05
