"""Intensities, turning points and allocation of DisagMoE (arXiv 2605.11005), sections 3.3 and 4.3."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.optimizer.allocation import solve
from moeplan.optimizer.relaxation import relax
from moeplan.options import Budgets, NicOption, OptionTable, SideOption
from moeplan.papers.disagmoe import (
    Demand,
    Layer,
    Split,
    attention_flop_exact,
    attention_intensity_exact,
    attention_intensity_paper,
    attention_share_continuous,
    coefficients_exact,
    fewest_gpus,
    ffn_flop_exact,
    ffn_intensity_exact,
    ffn_intensity_paper,
    least_seconds_continuous,
    mfu_paper,
    pipeline_seconds_paper,
    scaling_laws_paper,
    side_turning_points_paper,
    stage_seconds_paper,
    token_bytes,
    turning_point,
)
from moeplan.resources.work import Load, forward
from moeplan.spec.shipped import load_model

# The paper's three models with the shapes of their public configurations; top_k 4 of DeepSeek-MoE is the paper's.
QWEN3 = Layer(hidden=4096, query_width=64 * 128, key_width=4 * 128, expert_width=1536, experts=128, top_k=8)
GPT_OSS = Layer(hidden=2880, query_width=64 * 64, key_width=8 * 64, expert_width=2880, experts=128, top_k=4)
DEEPSEEK = Layer(hidden=2048, query_width=2048, key_width=2048, expert_width=1408, experts=64, top_k=4)
GQA_GROUP = {QWEN3: 16, GPT_OSS: 8, DEEPSEEK: 1}
LENGTHS = [4096, 8192, 16384, 32768]
H800 = 989e12  # bf16 dense, NVIDIA's data sheet
NIC = 50e9  # 400 Gbit/s

POSITIVE = st.floats(1e-3, 1e3)
COUNT = st.integers(1, 512)


@pytest.mark.parametrize(
    ("layer", "attention", "ffn"),
    [
        (QWEN3, [1568, 2592, 4640, 8736], 3072),
        (GPT_OSS, [2858, 4906, 9002, 17194], 5760),
        (DEEPSEEK, [3072, 5120, 9216, 17408], 2816),
    ],
    ids=["Qwen3-235B", "GPT-OSS-120B", "DeepSeek-MoE"],
)
def test_printed_intensities_of_the_three_models(layer, attention, ffn):
    found = [attention_intensity_paper(layer.hidden, GQA_GROUP[layer], s, layer.top_k) for s in LENGTHS]
    assert found == attention
    assert ffn_intensity_paper(layer.expert_width) == ffn


@given(st.integers(1, 10**4), st.integers(1, 64), st.integers(1, 10**6), st.integers(1, 16))
def test_attention_intensity_is_affine_in_sequence_length(hidden, gqa_group, seq_len, top_k):
    """2 / k FLOP per byte for each further token, where the experts' gain none."""
    at, next_one, far = (
        attention_intensity_paper(hidden, gqa_group, s, top_k) for s in (seq_len, seq_len + 1, 3 * seq_len)
    )
    assert next_one - at == pytest.approx(2 / top_k, abs=1e-6)
    assert far - at == pytest.approx(2 * seq_len * 2 / top_k, rel=1e-9)


@pytest.mark.parametrize(
    ("layer", "ratios"),
    [(QWEN3, [0.69, 0.92, 1.36, 2.25]), (GPT_OSS, [0.44, 0.60, 0.94, 1.62]), (DEEPSEEK, [0.73, 0.97, 1.45, 2.42])],
    ids=["Qwen3-235B", "GPT-OSS-120B", "DeepSeek-MoE"],
)
def test_attention_overtakes_the_experts_as_sequences_grow(layer, ratios):
    """Causal attention over gated experts, by hand from the public configurations; bytes are the same, so FLOP too."""
    found = [attention_intensity_exact(layer, s) / ffn_intensity_exact(layer) for s in LENGTHS]
    assert found == pytest.approx(ratios, abs=0.011)
    assert found == pytest.approx([attention_flop_exact(layer, s) / ffn_flop_exact(layer) for s in LENGTHS])


@given(st.sampled_from([1, 2, 4, 8, 16]), st.integers(1, 64), st.integers(1, 10**6), st.integers(1, 16))
def test_the_printed_intensity_lacks_half_of_the_projections(gqa_group, heads, seq_len, top_k):
    """Not causal and with query heads as wide as the hidden size, which is what it assumes."""
    hidden = 16 * gqa_group * heads
    layer = Layer(hidden, hidden, hidden // gqa_group, expert_width=8, experts=16, top_k=top_k)
    lacking = hidden * (2 + 2 / gqa_group) / (2 * top_k)
    printed = attention_intensity_paper(hidden, gqa_group, seq_len, top_k)
    assert attention_intensity_exact(layer, seq_len, causal=False) - printed == pytest.approx(lacking)


def test_the_printed_expert_intensity_is_that_of_two_matrices():
    assert ffn_intensity_paper(1536) == ffn_intensity_exact(QWEN3, matrices=2)
    assert ffn_intensity_exact(QWEN3) == 3 * 1536
    assert ffn_intensity_exact(QWEN3._replace(shared_experts=2)) == pytest.approx(3 * 1536 * 10 / 8)


@pytest.mark.parametrize("seq_len", LENGTHS)
def test_exact_flop_are_those_that_the_planner_counts(seq_len):
    model = load_model("qwen3-235b-a22b")
    load = Load(tokens=1.0, rows=float(model.top_k))

    def planned(kind):
        return sum(w.flop for w in forward(model, kind, load, seq_len=seq_len, dtype="bf16"))

    assert attention_flop_exact(QWEN3, seq_len, router=True) == pytest.approx(planned("attention"), rel=1e-12)
    assert ffn_flop_exact(QWEN3) == pytest.approx(planned("experts"), rel=1e-12)


@pytest.mark.parametrize("causal", [True, False])
@given(seq_len=st.integers(1, 10**6))
def test_scaling_laws_with_exact_coefficients_are_the_exact_flop(causal, seq_len):
    scaled = scaling_laws_paper(seq_len, coefficients_exact(GPT_OSS, causal=causal))
    assert scaled.attention_flop == pytest.approx(seq_len * attention_flop_exact(GPT_OSS, seq_len, causal=causal))
    assert scaled.ffn_flop == pytest.approx(seq_len * ffn_flop_exact(GPT_OSS))
    assert scaled.volume_bytes == seq_len * 22.5 * 1024


def test_bytes_of_a_token_in_one_direction():
    """KiB per token and layer, by hand from the public configurations."""
    kib = [token_bytes(layer.hidden, layer.top_k) / 1024 for layer in (DEEPSEEK, GPT_OSS, QWEN3)]
    assert kib == [16, 22.5, 64]


def test_turning_point_of_an_h800_with_one_400_gbit_nic():
    assert turning_point(128, 128, H800, NIC) == pytest.approx(19780)
    intensities = [attention_intensity_paper(m.hidden, GQA_GROUP[m], 32768, m.top_k) for m in GQA_GROUP]
    assert max(intensities) < turning_point(1, 1, H800, NIC)  # all are bound by the network at nominal peaks


@given(COUNT, COUNT, COUNT)
def test_turning_points_of_the_sides_with_half_of_the_nics_each(attention_gpus, ffn_gpus, half):
    """They are to each other as the GPUs, their mean is that before, and each is its own GPUs over its own NICs."""
    whole = turning_point(attention_gpus + ffn_gpus, 2 * half, H800, NIC)
    a, f = side_turning_points_paper(whole, attention_gpus, ffn_gpus)
    assert a / f == pytest.approx(attention_gpus / ffn_gpus)
    assert (a + f) / 2 == pytest.approx(whole)
    assert a == pytest.approx(turning_point(attention_gpus, half, H800, NIC))
    assert f == pytest.approx(turning_point(ffn_gpus, half, H800, NIC))


@given(POSITIVE, POSITIVE, COUNT, COUNT)
def test_a_stage_turns_from_network_to_compute_at_its_turning_point(flop, volume, gpus, nics):
    seconds, _ = stage_seconds_paper(Demand(flop, 1.0, volume, 3.0, 2.0), Split(gpus, 1, nics, 1))
    binds = "compute" if flop / volume >= turning_point(gpus, nics, 3.0, 2.0) else "network"
    assert seconds == pytest.approx({"compute": flop / (3 * gpus), "network": volume / (2 * nics)}[binds])


GPUS, NICS = 10, 7
DEMANDS = [
    Demand(attention, ffn, volume, peak_flop_per_s=2.0, nic_bytes_per_s=0.5)
    for (attention, ffn), volume in product([(8.0, 10.0), (1.0, 30.0), (23.0, 4.0), (7.0, 7.0)], [0.1, 1.5, 3.0, 40.0])
]


def splits(gpus=GPUS, nics=NICS):
    """All (M, N, M_a, M_f) with M + N <= W and M_a + M_f <= M_tot."""
    for m, n, a, f in product(range(1, gpus), range(1, gpus), range(1, nics), range(1, nics)):
        if m + n <= gpus and a + f <= nics:
            yield Split(m, n, a, f)


def fastest(demand, gpus=GPUS, nics=NICS):
    return min(pipeline_seconds_paper(demand, split) for split in splits(gpus, nics))


def table(demand, gpus=GPUS, nics=NICS):
    """The same choices as options of the integer program."""

    def side(flop):
        return tuple(
            SideOption(f"{g} gpus", g, nics, "none", flop / (g * demand.peak_flop_per_s), 1.0) for g in range(1, gpus)
        )

    pairs = tuple(NicOption(a, f) for a, f in product(range(1, nics), repeat=2) if a + f <= nics)
    both = side(demand.attention_flop), side(demand.ffn_flop)
    return OptionTable(*both, pairs, demand.volume_bytes, demand.nic_bytes_per_s), Budgets(gpus, nics, 80e9)


def relaxed(demand, gpus=GPUS, nics=NICS):
    work = (demand.attention_flop / demand.peak_flop_per_s, demand.ffn_flop / demand.peak_flop_per_s)
    return relax(*work, demand.volume_bytes, demand.nic_bytes_per_s, Budgets(gpus, nics, 80e9)).seconds


@pytest.mark.parametrize("demand", DEMANDS)
def test_the_integer_program_equals_brute_force_over_gpus_and_nics(demand):
    choice = solve(*table(demand))
    assert choice.seconds == pytest.approx(fastest(demand), rel=1e-9)
    assert choice.status == "optimal"
    assert (choice.attention.gpus, choice.ffn.gpus) == fewest_gpus(demand, choice.seconds)


@pytest.mark.parametrize("demand", DEMANDS)
def test_whole_gpus_and_nics_cost_at_most_one_of_each(demand):
    """T* of whole numbers lies between the continuous one and that with one GPU and one NIC less."""
    least = least_seconds_continuous(demand, GPUS, NICS)
    assert relaxed(demand) == pytest.approx(least, rel=1e-7)
    assert least * (1 - 1e-12) <= fastest(demand) <= least_seconds_continuous(demand, GPUS - 1, NICS - 1) * (1 + 1e-12)


def test_both_kinds_of_bound_are_tried():
    network = [2 * d.volume_bytes / (NICS * d.nic_bytes_per_s) for d in DEMANDS]
    bound = [seconds == least_seconds_continuous(d, GPUS, NICS) for d, seconds in zip(DEMANDS, network, strict=True)]
    assert sum(bound) >= 4
    assert sum(bound) <= len(bound) - 4


def test_where_compute_binds_attention_takes_its_share_of_the_flop():
    demand = Demand(30.0, 60.0, 0.001, 1.0, 1.0)
    best = min(splits(9, 4), key=lambda split: pipeline_seconds_paper(demand, split))
    assert best.attention_gpus / 9 == attention_share_continuous(demand) == pytest.approx(1 / 3)


@pytest.mark.parametrize("more", [1, 2, 6])
def test_where_the_network_binds_more_ffn_gpus_change_nothing(more):
    demand = Demand(8.0, 10.0, 40.0, 2.0, 0.5)
    assert fastest(demand) == fastest(demand, GPUS + more) == pytest.approx(40 / (3 * 0.5))
    assert solve(*table(demand)).seconds == solve(*table(demand, GPUS + more)).seconds
    assert least_seconds_continuous(demand, GPUS, NICS) == least_seconds_continuous(demand, GPUS + more, NICS)
    assert fewest_gpus(demand, fastest(demand)) == (1, 1)


@given(st.floats(1, 100), st.floats(1, 100), st.integers(2, 64))
def test_mfu_is_one_where_work_divides_freely_and_no_network_binds(attention, ffn, gpus):
    """So the objective of the second phase is a constant once T* and the GPUs are given."""
    demand = Demand(attention, ffn, 0.0, 2.0, 1.0)
    assert mfu_paper(demand, least_seconds_continuous(demand, gpus, 1), gpus) == pytest.approx(1.0)
