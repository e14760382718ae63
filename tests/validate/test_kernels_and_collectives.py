"""Single kernels and collectives against formulas written out here."""

from math import sqrt

import pytest
from msgspec import structs

from moeplan.cost.compute import share
from moeplan.errors import SpecError
from moeplan.spec.shipped import load_calibration
from moeplan.validation.collectives import pattern, predict_collective
from moeplan.validation.kernels import held_out, predict_gemm
from moeplan.validation.names import PUBLISHED
from moeplan.validation.outcome import Skip
from moeplan.validation.tables import Collective, Gemm, read_table

PEAK, HBM = 989e12, 3.35e12
NCCL = "nccl-tests size"


def product(**changes):
    row = {"id": "OWN-5", "hardware": "dgx-h100", "kind": "gemm", "dtype": "bfloat16", "m": 2048, "n": 4096, "k": 8192}
    return Gemm(**row | {"latency_us": 200.0} | changes)


def collective(**changes):
    row = {"id": "OWN-1", "hardware": "dgx-h100", "nodes": 1, "gpus": 8, "collective": "alltoall"}
    row |= {"message_bytes": 2.0**26, "definition_of_bytes": NCCL, "latency_us": 1000.0}
    return Collective(**{name: value for name, value in (row | changes).items() if value is not None})


def test_a_large_product_takes_its_flop_at_the_share_of_its_shape(names):
    """No launch, and operands as warm as the table's."""
    found = predict_gemm(product(), names)
    reached = share(load_calibration("h100").gemm["bf16"], 2048, 4096, 8192)
    assert found.predicted == pytest.approx(2 * 2048 * 4096 * 8192 / (PEAK * reached))
    assert found.measured == pytest.approx(200e-6)
    assert (found.accelerator, found.kind) == ("H100 SXM 80GB", "")


def test_a_thin_product_takes_its_bytes(names):
    found = predict_gemm(product(m=1, n=4096, k=2**20), names)
    assert found.predicted == pytest.approx(2 * (2**20 + 2**20 * 4096 + 4096) / (0.8 * HBM), rel=0.3)
    assert found.predicted >= 2 * (2**20 + 2**20 * 4096 + 4096) / (0.8 * HBM)


def test_groups_multiply_the_work_and_start_each_at_a_loss(names):
    at, calibration = 700, load_calibration("h100")
    reached = share(calibration.gemm["bf16"], 4 * at, 4096, 8192) * at / (at + calibration.grouped.half_rows)
    found = predict_gemm(product(kind="grouped_gemm", groups=4, m=at), names)
    assert found.predicted == pytest.approx(4 * 2 * at * 4096 * 8192 / (PEAK * reached))


def test_one_byte_elements_have_their_own_peak_and_surface(names):
    row = product(hardware="H100-SXM 80GB", dtype="fp8_block 1x128/128x128")
    reached = share(load_calibration("h100").gemm["fp8_block"], 2048, 4096, 8192)
    assert predict_gemm(row, names).predicted == pytest.approx(2 * 2048 * 4096 * 8192 / (1979e12 * reached))


def test_an_element_type_without_a_peak(names):
    with pytest.raises(Skip, match="gpu 'A100 SXM 80GB': no peak for fp8; the cluster file gives bf16, fp16"):
        predict_gemm(product(hardware="dgx-a100", dtype="fp8"), names)
    with pytest.raises(Skip, match="gpu 'H100 SXM 80GB': no peak for fp4; the cluster file gives bf16"):
        predict_gemm(product(dtype="NVFP4"), names)
    with pytest.raises(Skip, match="dtype: int4 is no known element type") as caught:
        predict_gemm(product(dtype="int4"), names)
    assert "right is bf16, fp16, fp8, fp8_block, mxfp8, nvfp4" in caught.value.told


@pytest.mark.parametrize(("dtype", "same"), [("FP16", "bf16"), ("float16", "bf16"), ("fp8-block", "fp8_block")])
def test_element_types_have_several_names(names, dtype, same):
    assert predict_gemm(product(dtype=dtype), names) == predict_gemm(product(dtype=same), names)


def test_narrow_types_with_scales_are_priced_where_the_machine_has_them(names):
    """Types without a surface of their own take the better of those that the calibration names, times a factor."""
    types, like = ("fp8", "fp8_block", "mxfp8", "nvfp4"), load_calibration("b200").linear
    rows = [predict_gemm(product(hardware="dgx-b200", dtype=dtype, m=8192), names).predicted for dtype in types]
    best = min(rows[:2])
    assert rows[2:] == pytest.approx([best / like["mxfp8"].times, best / like["nvfp4"].times])


@pytest.mark.parametrize(
    ("kind", "same"),
    [("GEMM", "gemm"), ("matmul", "gemm"), ("grouped-gemm", "grouped_gemm"), ("Grouped GEMM", "grouped_gemm")],
)
def test_kinds_have_several_names(names, kind, same):
    changes = {"m": 700, "groups": 4} if "roup" in kind else {}
    assert predict_gemm(product(kind=kind, **changes), names) == predict_gemm(product(kind=same, **changes), names)


@pytest.mark.parametrize("kind", ["attention", "gemv", "grouped"])
def test_another_kernel_is_no_matrix_product(names, kind):
    with pytest.raises(Skip, match=f"{kind} is no matrix product"):
        predict_gemm(product(kind=kind), names)
    assert predict_gemm(product(kind="gemm (best shape)"), names) == predict_gemm(product(), names)


@pytest.mark.parametrize("text", ["4096 tok x top-0 x 7168 FP8", "0 tok x top-8", "top-8 hidden 0"])
def test_counts_of_routed_rows_are_above_0(names, text):
    with pytest.raises(SpecError, match=r"definition_of_bytes, notes: .* is no whole number above 0"):
        predict_collective(collective(**ROUTED | {"definition_of_bytes": text}), names)


@pytest.mark.parametrize(
    ("number", "ours"), [("GEMM-00005", True), ("MAMF-10", True), ("GEMM-00004", False), ("X", False)]
)
def test_every_fifth_row_is_compared(number, ours):
    assert held_out(product(id=number)) is ours


@pytest.mark.parametrize(
    ("name", "share", "steps"),
    [("alltoall", 7 / 8, 1), ("all_gather", 7 / 8, 7), ("reduce_scatter", 7 / 8, 7), ("all_reduce", 9 / 8, 14)],
)
def test_collectives_inside_a_node(names, name, share, steps):
    """Bytes over NVLink, or the kernel that copies all; the tier's latency and fill, and two links per step.

    All-reduces send their buffer once and an eighth of the sum, which the switch makes.
    """
    node = load_calibration("h100").node
    links = share * 2**26 / (450e9 * node.efficiency * (node.shares["all_reduce"] if name == "all_reduce" else 1))
    moving = max(links, 0 if name == "all_reduce" else 2**26 / node.kernel_bytes_per_s)
    seconds = node.latency_s + steps * 2 * 0.35e-6 + moving + 2 * sqrt(node.fill_s * moving)
    assert predict_collective(collective(collective=name), names).predicted == pytest.approx(seconds)


@pytest.mark.parametrize(("name", "factor"), [("alltoall", 1), ("all_reduce", 2), ("all_gather", 1)])
def test_a_bus_bandwidth_gives_the_time(names, name, factor):
    row = collective(collective=name, latency_us=None, bw_GBps=100.0, bw_definition="nccl-tests busbw")
    assert predict_collective(row, names).measured == pytest.approx(factor * 7 / 8 * 2**26 / 100e9)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((text, "alltoall") for text in ("all_to_all", "all-to-all", "All to All", "AllToAll", "alltoall_perf")),
        *((text, "all_reduce") for text in ("allreduce", "AllReduce", "all-reduce", "all_reduce_perf", "all reduce")),
        *((text, "all_gather") for text in ("allgather", "all-gather")),
        *((text, "reduce_scatter") for text in ("reducescatter", "reduce-scatter", "ReduceScatter")),
        ("all-to-all (rail-aligned)", "alltoall (rail-aligned)"),
        ("moe-dispatch", "moe_dispatch"),
        ("MoE combine", "moe_combine"),
        ("moe_dispatch (a2a only)", "moe_dispatch (a2a only)"),
        ("broadcast", "broadcast"),
        ("allreduced", "allreduced"),
        ("all_scatter", "all_scatter"),
    ],
)
def test_collectives_have_several_names(text, name):
    assert pattern(text) == name


def test_another_name_is_the_same_collective(names):
    one, other = (predict_collective(collective(collective=text), names) for text in ("all_to_all", "alltoall"))
    assert one == other


def test_an_algorithm_bandwidth_is_bytes_over_seconds(names):
    row = collective(latency_us=None, bw_GBps=100.0, bw_definition="algbw", definition_of_bytes=None)
    assert predict_collective(row, names).measured == pytest.approx(2**26 / 100e9)


def test_two_nodes_send_half_over_their_cards(names):
    network = load_calibration("h100").network
    found = predict_collective(collective(nodes=2, gpus=16), names)
    moving = (2**26 / 2 + 8 * network.half_message_bytes) / (50e9 * network.efficiency)
    expected = network.latency_s + moving + 2 * sqrt(network.fill_s * moving)
    assert found.predicted == pytest.approx(expected, rel=0.01)


ROUTED = {"collective": "moe_dispatch", "nodes": 4, "gpus": 32, "definition_of_bytes": "4096 tok x top-8 x 7168 FP8"}


def test_routed_rows_cross_once_per_node_where_the_library_does_that(names):
    """Of k = 8 copies over 4 nodes 4 (1 - (3/4)^8) leave, but no low-latency kernel leaves any out."""
    once = predict_collective(collective(**ROUTED, library="DeepEP normal kernels"), names).predicted
    each = predict_collective(collective(**ROUTED, library="DeepEP V1 low-latency"), names).predicted
    assert once / each == pytest.approx(4 * (1 - 0.75**8) / 8, rel=0.2)
    network = load_calibration("h100").network
    wire = 2**26 / 8 * 3 * (1 - 0.75**8) / (50e9 * network.efficiency * network.shares["deepep"])
    assert once == pytest.approx(wire, rel=0.15)


@pytest.mark.parametrize(
    ("definition", "nodes", "copies"),
    [
        ("DeepEP-style bottleneck bandwidth NVLink/xGMI", 1, 8 * (1 - (7 / 8) ** 8)),
        ("DeepEP-style bottleneck bandwidth RDMA", 2, 2 * (1 - (1 / 2) ** 8)),
        ("DeepEP-style bottleneck bandwidth RDMA", 8, 4 * (1 - (3 / 4) ** 8)),
        ("NIC bandwidth per GPU", 4, 3 * (1 - (3 / 4) ** 8)),
        ("algorithm bandwidth (uni-dir)", 1, 8 * (1 - (7 / 8) ** 8)),
    ],
)
def test_bandwidths_of_experts_libraries_give_the_time(names, definition, nodes, copies):
    """Received once per rank, sent once per node with the own node, of which 4 are reached at most, or without it."""
    row = collective(**ROUTED | {"nodes": nodes, "gpus": 8 * nodes}, latency_us=None, bw_GBps=40.0, library="DeepEP")
    found = predict_collective(structs.replace(row, bw_definition=definition), names)
    assert found.measured == pytest.approx(2**26 / 8 * copies / 40e9)


@pytest.mark.parametrize(
    ("hardware", "gpus", "seconds"),
    [
        ("p5en: 8x H200 + 16x200Gb EFA", 8, 500e-6),
        ("p5en: 8x H200 + 16x200Gb EFA", 16, 1196e-6),
        ("p5en: 8x H200 + 16x200Gb EFA", 24, 1633e-6),
        ("p5en: 8x H200 + 16x200Gb EFA", 32, 2022e-6),
    ],
)
def test_those_bandwidths_and_times_that_are_printed_beside_them_agree(names, hardware, gpus, seconds):
    """UCCL-EP prints both: 4096 tokens of 7168 bytes and their scales, 3 % more, to 8 experts each."""
    rows = read_table(PUBLISHED / "collectives.csv", Collective)
    row = next(r for r in rows if r.hardware == hardware and r.gpus == gpus and "normal" in r.library)
    told = predict_collective(structs.replace(row, latency_us=None), names).measured
    assert predict_collective(row, names).measured == pytest.approx(seconds)
    assert told == pytest.approx(seconds, rel=0.06)


def test_gpus_that_are_not_printed_follow_from_bus_bandwidth_and_time(names):
    """2 (n - 1) / n = 855.95 x 9878.8 us / 4 GiB, so that n is 64."""
    row = collective(hardware="GB200 NVL72", gpus=None, nodes=None, collective="all_reduce", message_bytes=2.0**32)
    told = structs.replace(row, bw_GBps=855.95, latency_us=9878.8)
    whole = structs.replace(told, gpus=64)
    assert predict_collective(told, names).predicted == predict_collective(whole, names).predicted


def test_largest_sizes_are_large(names):
    row = collective(message_bytes=None, definition_of_bytes="peak (largest sizes)", latency_us=None)
    told = structs.replace(row, bw_GBps=320.0, bw_definition="nccl-tests busbw")
    assert predict_collective(told, names).measured == pytest.approx(7 / 8 * 8 * 2**30 / 320e9)


def test_puts_that_gpus_start_take_the_cards_inside_a_node_too(names):
    """15 of 16 parts of 16 x 64 MiB over one card of 50 GB/s."""
    row = collective(nodes=2, gpus=16, collective="alltoall (GPU-initiated)", definition_of_bytes="bytes per peer")
    network = load_calibration("h100").network
    assert predict_collective(row, names).predicted == pytest.approx(15 * 2**26 / (50e9 * network.efficiency), rel=0.02)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": None}, "number of GPUs not published"),
        ({"message_bytes": None}, "bytes not published"),
        ({"message_bytes": 2.0**20 - 1}, "below 1 MiB"),
        ({"latency_us": None}, "latency_us, bw_GBps: both are empty"),
        ({"latency_us": None, "collective": "moe_dispatch"}, "latency_us, bw_GBps: both are empty"),
        ({"latency_us": None, "bw_GBps": 5.0, "bw_definition": "RDMA"}, "no time published"),
        ({"collective": "broadcast"}, "broadcast is no pattern"),
        ({"definition_of_bytes": "bytes of all ranks"}, "bytes in a definition of their own"),
        ({"collective": "moe_dispatch", "library": "pplx-kernels", "definition_of_bytes": "top-8"}, "no dispatcher"),
        ({"collective": "moe_dispatch"}, "experts per token not published"),
        ({"nodes": 4, "gpus": 16}, "a part of the GPUs of several nodes"),
        ({"gpus": 12}, "not whole nodes"),
        ({"gpus": 1}, "one GPU sends nothing"),
        ({"gpus": 1, "latency_us": None, "bw_GBps": 5.0, "bw_definition": "busbw"}, "one GPU sends nothing"),
        ({"gpus": 1} | {"collective": "moe_dispatch", "definition_of_bytes": "top-8"}, "one GPU sends nothing"),
        ({"gpus": 100_000}, "nodes and GPUs disagree"),
        ({"nodes": 3}, "nodes and GPUs disagree"),
        ({"nodes": 12_500, "gpus": 100_000}, "too many GPUs"),
        ({"nodes": 512, "gpus": 4096}, "too many GPUs"),
        ({"nodes": 4096, "gpus": 32_768, "collective": "all_reduce"}, "too many GPUs"),
        ({"hardware": "Intel Gaudi 2"}, "no cluster with it ships"),
    ],
)
def test_rows_that_are_not_compared(names, changes, reason):
    with pytest.raises(Skip, match=reason):
        predict_collective(collective(**changes), names)


def test_a_rack_is_one_domain_of_several_nodes(names):
    row = collective(hardware="GB200 NVL72 (OCI)", nodes=16, gpus=64)
    assert (
        predict_collective(row, names).predicted
        == predict_collective(collective(hardware="GB200 NVL72", nodes=None, gpus=64), names).predicted
    )
