"""`--set`: fields by their names in files, values with types and units, refusals that list the fields."""

import pytest

from moeplan.errors import SpecError
from moeplan.spec.case import Case
from moeplan.spec.cluster import hosts_of
from moeplan.spec.override import override, split_settings
from moeplan.spec.shipped import load_cluster, load_model
from moeplan.spec.workload import Workload

CASE = Case(
    model=load_model("mixtral-8x7b"),
    cluster=load_cluster("h800-16x8"),
    workload=Workload(seq_len=4096, global_batch=256),
)


def test_nothing_set_is_the_same_case() -> None:
    assert override(CASE, []) == CASE


def test_values_of_every_root() -> None:
    case = override(
        CASE,
        [
            "model.top_k=4",
            "model.attention.qk_norm = true",
            'cluster.node.nic="200 Gbit/s"',
            "cluster.node.nic_latency=5 us",
            "cluster.gpu.peak.bf16=500 TFLOP/s",
            "cluster.gpu.peak.fp32=60 TFLOP/s",
            "cluster.network.nodes_per_leaf=4",
            "workload.seq_len=8192",
            "workload.dtype=fp32",
            "memory.bytes_per_parameter=16",
        ],
    )
    assert case.model.top_k == 4
    assert case.model.attention.qk_norm
    assert case.cluster.node.nic_bytes_per_s == 25e9
    assert case.cluster.node.nic_latency_s == 5e-6
    assert case.cluster.gpu.peak_flop_per_s == {"bf16": 500e12, "fp8": 1979e12, "fp32": 60e12}
    assert case.cluster.network.nodes_per_leaf == 4
    assert (case.workload.seq_len, case.workload.dtype) == (8192, "fp32")
    assert case.memory.bytes_per_parameter == 16
    assert CASE.model.top_k == 2


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("tensor", ("tensor",)),
        ("tensor, expert", ("tensor", "expert")),
        ('["expert"]', ("expert",)),
        ("", ()),
        ("none", ()),
        ("[]", ()),
    ],
)
def test_a_list_may_be_written_with_commas_alone(text: str, hidden: tuple[str, ...]) -> None:
    assert override(CASE, ["execution.hidden=context", f"execution.hidden={text}"]).execution.hidden == hidden


def test_the_last_setting_wins_and_rules_see_only_the_end() -> None:
    assert override(CASE, ["model.top_k=4", "model.top_k=3"]).model.top_k == 3
    assert override(CASE, ["model.top_k=16", "model.experts=64"]).model.top_k == 16


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a=b", "no field 'a'; fields of a case: model, cluster, workload, memory"),
        ("model.topk=4", "no field 'topk'; fields of model: name, num_layers, .*top_k"),
        ("model.attention.windows=4", "fields of model.attention: kind, heads"),
        ("cluster.node.nic_bytes_per_s=5 GB/s", "fields of cluster.node: gpus, nics, link, .*nic,"),
        ("model.top_k.x=4", "'top_k' has no fields of its own"),
        ("model.top_k", "right: path=value"),
        ("=4", "right: path=value"),
        ("model..top_k=4", "right: path=value"),
        ("model.top_k=four", r"Expected `int`, got `str` - at `\$.model.top_k`"),
        ("model.top_k=4.0", "Expected `int`, got `float`"),
        ("model.top_k=9", r"top_k 9 is not within 1\.\.experts 8"),
        ("model=4", "Expected `object`"),
        ("workload.dtype=fp16", "'fp16' - at .*; right is bf16, fp32, fp64$"),
        ("execution.hidden=expert,all", r"'all' - at .*hidden\[1\]`; right is context, expert, gradients"),
        ("model.attention.qk_norm_weights=some", "right is all, head, none"),
        ("cluster.node.nic=200", "200 needs a unit"),
        ("cluster.node.nic=200 GiB", "'200 GiB' is not a BytesPerS"),
        ("cluster.node.nics=0", "nodes 16 with nics 0"),
        ("memory.usable=1.5", "<= 1.0"),
        ("memory.usable=nan", "memory.usable"),
        ("memory.bytes_per_parameter=6", "bytes_per_parameter 6.0 is less than weight_bytes 2.0"),
        ("workload.dtype=int8", "'int8'"),
        ("workload.seq_len=1\nx=2", "Expected `int`, got `str`"),
        ("workload.seq_len=" + "[" * 100_000, "workload.seq_len"),
    ],
)
def test_refusals(setting: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        override(CASE, [setting])


def test_layout_settings_are_kept_apart() -> None:
    case, layout = split_settings(["model.top_k=4", "layout.tp=2", "layout.family=piper", "layout.tp=4"])
    assert case == ("model.top_k=4",)
    assert layout == {"tp": 4, "family": "piper"}
    with pytest.raises(SpecError, match="right: path=value"):
        split_settings(["layout.tp"])


@pytest.mark.parametrize(("text", "nodes"), [("7", 1), ("[7]", 1), ("[7-8]", 2), ("7,9", 2), ('"7"', 1)])
def test_nodes_without_names_are_named_by_their_numbers(text: str, nodes: int) -> None:
    case = override(CASE, [f"cluster.use={text}", f"cluster.nodes={nodes}"])
    assert hosts_of(case.cluster)[0] == "7"
    assert "7" not in hosts_of(override(CASE, [f"cluster.exclude={text}"]).cluster)
