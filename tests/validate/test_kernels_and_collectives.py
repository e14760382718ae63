"""Single kernels and collectives against formulas written out here."""

from math import log

import pytest

from moeplan.spec.shipped import load_calibration
from moeplan.validate.collectives import predict_collective
from moeplan.validate.kernels import held_out, predict_gemm
from moeplan.validate.outcome import Skip
from moeplan.validate.tables import Collective, Gemm

PEAK, HBM = 989e12, 3.35e12
NCCL = "nccl-tests size"


def product(**changes):
    row = {"id": "OWN-5", "hardware": "dgx-h100", "kind": "gemm", "dtype": "bfloat16", "m": 2048, "n": 4096, "k": 8192}
    return Gemm(**row | {"latency_us": 200.0} | changes)


def collective(**changes):
    row = {"id": "OWN-1", "hardware": "dgx-h100", "nodes": 1, "gpus": 8, "collective": "alltoall"}
    row |= {"message_bytes": 2.0**26, "definition_of_bytes": NCCL, "latency_us": 1000.0}
    return Collective(**{name: value for name, value in (row | changes).items() if value is not None})


def test_a_large_product_takes_its_flop_at_the_efficiency_of_its_rows(names):
    found = predict_gemm(product(), names)
    assert found.predicted == pytest.approx(2 * 2048 * 4096 * 8192 / (PEAK * 0.68))  # gemm at 2048 rows, no launch
    assert found.measured == pytest.approx(200e-6)
    assert (found.accelerator, found.kind) == ("H100 SXM 80GB", "")


def test_a_thin_product_takes_its_bytes(names):
    found = predict_gemm(product(m=1), names)
    assert found.predicted == pytest.approx(2 * (8192 + 8192 * 4096 + 4096) / (0.8 * HBM))


def test_groups_multiply_the_work_and_read_the_curve_at_the_rows_of_one(names):
    (low, high), at = ((512, 0.60), (1024, 0.65)), 700
    e = low[1] + (high[1] - low[1]) * log(at / low[0]) / log(high[0] / low[0])
    found = predict_gemm(product(kind="grouped_gemm", groups=4, m=at), names)
    assert found.predicted == pytest.approx(4 * 2 * at * 4096 * 8192 / (PEAK * e))


def test_one_byte_elements_have_their_own_peak_and_two_byte_results(names):
    found = predict_gemm(product(hardware="H100-SXM 80GB", dtype="fp8_block 1x128/128x128", m=1), names)
    assert found.predicted == pytest.approx((8192 + 8192 * 4096 + 2 * 4096) / (0.8 * HBM))


def test_an_element_type_without_a_peak(names):
    with pytest.raises(Skip, match="no peak of H100 SXM 80GB for fp8"):
        predict_gemm(product(dtype="fp8"), names)
    with pytest.raises(Skip, match="for int4"):
        predict_gemm(product(dtype="int4"), names)


@pytest.mark.parametrize(
    ("number", "ours"), [("GEMM-00005", True), ("MAMF-10", True), ("GEMM-00004", False), ("X", False)]
)
def test_every_fifth_row_is_compared(number, ours):
    assert held_out(product(id=number)) is ours


@pytest.mark.parametrize(
    ("name", "share", "steps"),
    [("alltoall", 7 / 8, 1), ("all_gather", 7 / 8, 7), ("reduce_scatter", 7 / 8, 7), ("all_reduce", 7 / 4, 14)],
)
def test_collectives_inside_a_node(names, name, share, steps):
    """Bytes over NVLink, a half message for each of the messages, the tier's latency, and two links per step."""
    node = load_calibration("h100").node
    messages = 7 if name != "all_reduce" else 14
    moved = share * 2**26 + messages * node.half_message_bytes
    seconds = node.latency_s + steps * 2e-6 + moved / (450e9 * node.efficiency)
    assert predict_collective(collective(collective=name), names).predicted == pytest.approx(seconds)


@pytest.mark.parametrize(("name", "factor"), [("alltoall", 1), ("all_reduce", 2), ("all_gather", 1)])
def test_a_bus_bandwidth_gives_the_time(names, name, factor):
    row = collective(collective=name, latency_us=None, bw_GBps=100.0, bw_definition="nccl-tests busbw")
    assert predict_collective(row, names).measured == pytest.approx(factor * 7 / 8 * 2**26 / 100e9)


def test_two_nodes_send_half_over_their_cards(names):
    network = load_calibration("h100").network
    found = predict_collective(collective(nodes=2, gpus=16), names)
    moved = 2**26 / 2 + 8 * network.half_message_bytes
    assert found.predicted == pytest.approx(network.latency_s + moved / (50e9 * network.efficiency), rel=0.01)


def test_routed_rows_cross_once_per_node_where_the_library_does_that(names):
    """Of k = 8 copies over 4 nodes 4 (1 - (3/4)^8) leave, but no low-latency kernel leaves any out."""
    row = {"collective": "moe_dispatch", "nodes": 4, "gpus": 32, "definition_of_bytes": "4096 tok x top-8"}
    once = predict_collective(collective(**row, library="DeepEP normal kernels"), names).predicted
    each = predict_collective(collective(**row, library="DeepEP V1 low-latency"), names).predicted
    flat = predict_collective(collective(nodes=4, gpus=32), names).predicted
    assert each == pytest.approx(flat)
    assert once < each


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpus": None}, "number of GPUs not published"),
        ({"message_bytes": None}, "bytes not published"),
        ({"message_bytes": 2.0**20 - 1}, "below 1 MiB"),
        ({"latency_us": None}, "no time published"),
        ({"latency_us": None, "bw_GBps": 5.0, "bw_definition": "RDMA"}, "no time published"),
        ({"collective": "broadcast"}, "broadcast is no pattern"),
        ({"definition_of_bytes": "bytes of ONE message"}, "bytes in a definition of their own"),
        ({"collective": "moe_dispatch"}, "experts per token not published"),
        ({"nodes": 4, "gpus": 16}, "a part of the GPUs of several nodes"),
        ({"gpus": 12}, "not whole nodes"),
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
