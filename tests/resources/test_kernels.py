"""Kernels by shape: bytes, the products of a backward, launches, and what narrow types and fusion change."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.resources.kernels import backward, product, stream
from moeplan.resources.work import Load, forward
from moeplan.spec.execution import Execution
from moeplan.spec.model import is_dense, window_of
from moeplan.spec.shipped import load_model, shipped

SIZES = st.integers(1, 10_000)
LOAD = Load(4096.0, 32768.0, 1, 1, 8.0)
FUSED = Execution(kernels="fused")


def work(kind, execution=FUSED, name="qwen3-30b-a3b", load=LOAD, **more):
    return forward(load_model(name), kind, load, seq_len=4096, dtype="bf16", execution=execution, **more)


def moved(kernels):
    return sum(kernel.hbm_bytes for kernel in kernels if kernel.kind == "stream")


def launches(kernels):
    return sum(kernel.launches for kernel in kernels)


@given(SIZES, SIZES, SIZES, st.integers(1, 64))
def test_gradients_are_products_of_the_same_flop_with_sides_changed(m, n, k, groups):
    """Input's: [m, n] x [n, k]; weight's: [n, m] x [m, k], summed in fp32 over micro-batches."""
    kernel = product(m, k, n, 2, groups=groups, grouped=True)
    data, weight = backward([kernel])
    assert (kernel.m, kernel.n, kernel.k) == (m, n, k)
    assert (data.m, data.n, data.k) == (m, k, n)
    assert (weight.m, weight.n, weight.k) == (n, k, m)
    assert kernel.flop == data.flop == weight.flop == 2 * m * n * k
    assert kernel.hbm_bytes == 2 * (m * k + groups * k * n + m * n) == data.hbm_bytes
    assert weight.hbm_bytes == 2 * (m * n + m * k) + 8 * groups * k * n
    assert data.tokens == weight.tokens == m / groups


def test_a_backward_runs_from_the_end():
    first, last = product(1, 2, 3, 2), stream(5.0, 7.0, 1.0, 4.0)
    after = backward([first, last])
    assert [kernel.kind for kernel in after] == ["stream", "gemm", "gemm"]
    assert (after[0].hbm_bytes, after[0].launches) == (7.0, 4.0)
    assert backward([stream(5.0)])[0].hbm_bytes == 10.0


@pytest.mark.parametrize(("linear", "each"), [("same", 6), ("fp8", 14), ("fp8_block", 14), ("mxfp8", 14)])
def test_launches_per_local_expert(linear, each):
    """Two products forward and four backward; in 8 bits also casts of inputs and gradients, by rows and by columns."""
    execution = Execution(kernels="fused", linear=linear)
    few, many = (
        launches(some) + launches(backward(some))
        for some in (work("experts", execution, load=LOAD._replace(local_experts=e)) for e in (8, 16))
    )
    assert many - few == 8 * each


@pytest.mark.parametrize("name", shipped("model"))
@pytest.mark.parametrize("linear", ["fp8", "nvfp4"])
def test_narrow_types_change_bytes_and_casts_but_no_flop(name, linear):
    """Router, logits and attention core stay as they are; each narrow product has one cast before it."""
    model = load_model(name)
    layer = model.num_layers - 1
    window, moe = window_of(model, layer), not is_dense(model, layer)
    for kind in ("attention", "experts", "dense", "head"):
        wide, narrow = (
            work(kind, Execution(kernels="fused", linear=one), name, moe=moe, window=window) for one in ("same", linear)
        )
        assert sum(w.flop for w in wide) == sum(w.flop for w in narrow)
        products = [w for w in narrow if w.narrow]
        assert len(narrow) == len(wide) + len(products)
        assert all(w.kind in ("gemm", "grouped_gemm") for w in products)
        each = 4 if linear == "fp8" else 7
        casts = sum(each * w.m * w.k for w in products)
        assert moved(narrow) - moved(wide) == pytest.approx(casts)
        casts = sum(each * w.m * w.n for w in products)
        assert moved(backward(narrow)) - moved(backward(wide)) == pytest.approx(casts)
        assert not products if kind == "head" else all(w.operand_bytes < 2 for w in products)


def test_router_logits_and_core_stay_in_the_type_of_the_workload():
    """DeepSeek-V3 (arXiv 2412.19437), section 3.3."""
    narrow = Execution(linear="fp8_block")
    attention = work("attention", narrow)
    assert [w.n for w in attention if w.kind == "gemm" and not w.narrow] == [128]
    assert not any(w.narrow for w in work("head", narrow))
    assert all(w.narrow for w in work("experts", narrow) if w.kind == "grouped_gemm")


@pytest.mark.parametrize("kind", ["attention", "experts", "dense", "head"])
def test_fused_passes_move_less_in_fewer_launches(kind):
    model = "deepseek-v3"
    eager, fused = (
        work(kind, Execution(kernels=kernels, loss=loss), model)
        for kernels, loss in (("eager", "eager"), ("fused", "fused"))
    )
    assert moved(fused) < moved(eager)
    assert launches(fused) <= launches(eager)
    assert moved(backward(fused)) < moved(backward(eager))


def test_fused_passes_of_a_dense_layer_by_hand():
    """Per token: norm and residual 5 hidden and 9 backward, activation 3 width and 5 backward, two bytes each."""
    model, dense = load_model("llama-3.1-8b"), work("dense", name="llama-3.1-8b")
    for some, norm, inner in ((dense, 5, 3), (backward(dense), 9, 5)):
        assert moved(some) == pytest.approx(2 * 4096 * (norm * model.hidden + inner * model.dense_width))


def test_rows_are_sorted_again_behind_an_all_to_all_with_several_experts_alone():
    def passes(experts, dispatcher):
        load = LOAD._replace(local_experts=experts)
        return Counter(w.kind for w in work("experts", Execution(dispatcher=dispatcher), load=load))["stream"]

    assert passes(8, "all_to_all") == passes(1, "all_to_all") + 1 == passes(8, "deepep") + 1


def test_graphs_take_the_launches_of_what_is_static():
    pieces = ("attention", "experts", "dense", "head")
    started = {
        graphs: [launches(work(kind, Execution(kernels="fused", graphs=graphs))) > 0 for kind in pieces]
        for graphs in ("none", "layers", "step")
    }
    assert started == {"none": [True] * 4, "layers": [False, True, False, False], "step": [False] * 4}


def test_the_core_knows_its_sequence_and_heads():
    (core,) = (w for w in work("attention", name="gpt-oss-20b", window=128) if w.kind == "attention")
    assert (core.sequence, core.head_dim) == (128, 64)
    (core,) = (w for w in work("attention", name="deepseek-v3") if w.kind == "attention")
    assert (core.sequence, core.head_dim) == (4096, 160)


@pytest.mark.parametrize(("kernels", "passes"), [("eager", 8), ("compiled", 4), ("fused", 4)])
def test_scores_outside_the_kernel_are_bytes_and_no_masked_pair_is_skipped(kernels, passes):
    outside, inside = (work("attention", Execution(kernels=kernels, flash_attention=flash)) for flash in (False, True))
    scores = 4096 * 4096 * load_model("qwen3-30b-a3b").attention.heads
    assert moved(outside) - moved(inside) == passes * scores * 2
    (core,), (half,) = ([w for w in kernels if w.kind == "attention"] for kernels in (outside, inside))
    assert core.flop == 2 * half.flop


def test_outside_the_kernel_a_window_spares_nothing():
    """Scores of all pairs are made and masked, as memory has them too."""
    plain = Execution(kernels="fused", flash_attention=False)
    narrow, wide = (work("attention", plain, "gpt-oss-120b", window=window) for window in (128, 0))
    assert narrow == wide
    inside = (work("attention", FUSED, "gpt-oss-120b", window=window) for window in (128, 0))
    few, many = (next(w for w in kernels if w.kind == "attention") for kernels in inside)
    assert few.flop < many.flop / 10
