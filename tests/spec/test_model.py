"""A model's shape: what does not go together is refused, and which layer sees what."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.case import Case
from moeplan.spec.model import (
    STATE,
    GroupedQuery,
    Latent,
    ModelSpec,
    check_model,
    grouped,
    has_ffn,
    has_state,
    is_dense,
    kv_heads,
    moe_layers,
    moe_windows,
    row_width,
    shared_width,
    window_of,
    windows,
)
from moeplan.spec.override import override
from moeplan.spec.record import convert, to_plain
from moeplan.spec.shipped import load_cluster, load_model, shipped
from moeplan.spec.workload import Workload


@pytest.mark.parametrize("name", shipped("model"))
def test_what_is_assumed_are_fields_of_the_model(name):
    plain = to_plain(load_model(name))
    for path in plain["assumed"]:
        table = plain
        for key in path.split("."):
            table = table[key]
        assert table
    assert bool(plain["assumed"]) == name.startswith(("xmoe", "piper"))


@pytest.mark.parametrize("name", shipped("model"))
def test_a_model_survives_a_file(name):
    model = load_model(name)
    assert convert(to_plain(model), ModelSpec, where="here") == model


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mixtral-8x7b", {"expert_groups": 3}, "experts 8 % expert_groups 3 is not 0"),
        ("mixtral-8x7b", {"expert_groups": 2, "top_k_groups": 3}, "top_k_groups 3 > expert_groups 2"),
        ("mixtral-8x7b", {"expert_groups": 8}, "top_k 2 > 1 experts of top_k_groups 1"),
        ("mixtral-8x7b", {"attention": {"kv_heads": 5}}, "heads 32 % kv_heads 5 is not 0"),
        ("mixtral-8x7b", {"attention": {"window": 128}}, "window 128 with full_every 1 is seen by no layer"),
        ("mixtral-8x7b", {"moe_every": 3}, "moe_every 3 leaves 22 dense layers with dense_width 0"),
        ("mixtral-8x7b", {"shared_gate": True}, "shared_gate true with shared_experts 0"),
        ("mixtral-8x7b", {"moe_every": 32, "dense_width": 1, "top_k": 0}, r"top_k 0 is not within 1\.\.experts 8"),
        ("deepseek-v3", {"attention": {"rope_head_dim": 63}}, "rope_head_dim 63 is odd"),
        ("nemotron-3-nano", {"pattern": "EM*"}, r"pattern 'EM\*': right: M or \*, each followed by E, - or nothing"),
        ("mixtral-8x7b", {"pattern": "XX"}, r"pattern 'XX': right: M or \*, each followed by E, - or nothing"),
        ("mixtral-8x7b", {"pattern": "=E"}, r"pattern '=E': right: M or \*, each followed by E, - or nothing"),
        ("mixtral-8x7b", {"mtp_layers": 33}, "mtp_layers 33 > num_layers 32"),
        ("nemotron-3-nano", {"mixer": {"groups": 7}}, "mixer heads 64 % groups 7 is not 0"),
        ("nemotron-3-nano", {"mixer": {"groups": 128}}, "mixer heads 64 % groups 128 is not 0"),
        ("qwen3-next-80b-a3b", {"mixer": {"key_heads": 12}}, "mixer value_heads 32 % key_heads 12 is not 0"),
        ("nemotron-3-nano", {"pattern": "*E"}, "pattern and mixer: M in the one needs the other"),
        ("nemotron-3-nano", {"pattern": "M-"}, "pattern with - and dense_width 0"),
        ("nemotron-3-nano", {"pattern": ""}, "mixer without a pattern"),
        ("nemotron-3-nano", {"num_layers": 52}, "num_layers 52 is no multiple of the pattern's 29, nor less"),
        ("nemotron-3-nano", {"dense_layers": 1, "dense_width": 8}, "dense_layers 1 beside a pattern"),
        ("nemotron-3-nano", {"moe_every": 2}, "moe_every 2 beside a pattern"),
    ],
)
def test_numbers_that_do_not_go_together(name, changes, message):
    model = load_model(name)
    fields = dict(changes)
    for part in {"attention", "mixer"} & set(fields):
        fields[part] = structs.replace(getattr(model, part), **fields[part])
    with pytest.raises(SpecError, match=f"model {name}: {message}"):
        check_model(structs.replace(model, **fields))


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 40))
def test_windows_count_what_every_layer_sees(full_every, start, more):
    attention = GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=128, full_every=full_every)
    model = structs.replace(load_model("tiny-moe"), attention=attention, num_layers=80)
    layers = range(start, start + more)
    seen = [window_of(model, layer) for layer in layers]
    assert windows(model, layers) == {w: seen.count(w) for w in set(seen)}
    assert windows(model, range(start + more, start)) == {}


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 9), st.integers(0, 40), st.integers(0, 40))
def test_layers_with_experts_are_counted_layer_by_layer(moe_every, full_every, dense_layers, start, more):
    attention = GroupedQuery(heads=4, kv_heads=2, head_dim=16, window=128, full_every=full_every, chunked=True)
    fields = {"attention": attention, "num_layers": 80, "dense_layers": dense_layers, "moe_every": moe_every}
    model = structs.replace(load_model("tiny-moe"), dense_width=8, **fields)
    layers = range(start, start + more)
    seen = [window_of(model, layer) for layer in layers if not is_dense(model, layer)]
    assert moe_windows(model, layers) == {w: seen.count(w) for w in set(seen)}
    assert moe_layers(model, layers) == len(seen)
    assert moe_layers(model) == sum(not is_dense(model, layer) for layer in range(80))


def test_a_model_whose_step_is_beyond_its_layers_needs_no_experts():
    dense = structs.replace(load_model("tiny-moe"), moe_every=5, dense_width=8, experts=0, top_k=0, expert_width=0)
    assert moe_layers(check_model(dense)) == 0


def test_shared_experts_may_be_of_their_own_width():
    model = load_model("deepseek-v2")
    assert shared_width(model) == 2 * 1536
    assert shared_width(structs.replace(model, shared_width=100)) == 200


def test_gpt_oss_alternates():
    model = load_model("gpt-oss-120b")
    assert [window_of(model, layer) for layer in range(4)] == [128, 0, 128, 0]
    assert windows(model, range(36)) == {0: 18, 128: 18}


def test_a_window_of_zero_is_full_attention_everywhere():
    cluster = load_cluster("h800-16x8")
    case = Case(model=load_model("gpt-oss-20b"), cluster=cluster, workload=Workload(seq_len=4096, global_batch=8))
    model = override(case, ["model.attention.window=0"]).model
    assert windows(model, range(24)) == {0: 24}
    assert {window_of(model, layer) for layer in range(24)} == {0}


def test_latent_attention_has_keys_for_every_head_and_is_not_grouped():
    model = load_model("deepseek-v3")
    assert kv_heads(model.attention) == 128
    assert kv_heads(load_model("mixtral-8x7b").attention) == 8
    assert isinstance(model.attention, Latent)
    with pytest.raises(SpecError, match="kind 'mla'; 'gqa' is wanted"):
        grouped(model)


PATTERNS = st.lists(st.sampled_from(["M", "ME", "M-", "*", "*E", "*-"]), min_size=1, max_size=6)


@given(PATTERNS, st.integers(1, 40), st.integers(0, 40), st.integers(0, 40))
def test_layers_of_a_pattern_are_counted_as_they_stand(blocks, layers, start, stop):
    """The pattern repeats, or is cut off: layer l is block l modulo their number."""
    model = structs.replace(load_model("nemotron-3-nano"), pattern="".join(blocks), num_layers=layers)
    mine = range(min(start, layers), min(stop, layers))
    found = [blocks[layer % len(blocks)] for layer in range(layers)]
    assert [has_state(model, layer) for layer in range(layers)] == [block[0] == "M" for block in found]
    assert [has_ffn(model, layer) for layer in range(layers)] == [len(block) == 2 for block in found]
    assert [is_dense(model, layer) for layer in range(layers)] == [block[-1] != "E" for block in found]
    kinds = [STATE if found[layer][0] == "M" else 0 for layer in mine]
    assert windows(model, mine) == Counter(kinds)
    sparse = [kind for layer, kind in zip(mine, kinds, strict=True) if found[layer][-1] == "E"]
    assert moe_windows(model, mine) == Counter(sparse)
    assert moe_layers(model, mine) == len(sparse)


def test_rows_travel_at_the_width_of_the_experts():
    assert row_width(load_model("nemotron-3-super")) == 1024
    assert row_width(load_model("nemotron-3-nano")) == 2688
