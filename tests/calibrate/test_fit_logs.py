"""Calibrations fitted to logs: numbers that made them are found again, what no log tells stays and is marked."""

import random
from collections import defaultdict
from itertools import pairwise
from math import log
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from moeplan.calibrate.busbw import busbw_factor
from moeplan.calibrate.fit_logs import errors, fitted
from moeplan.calibrate.fit_text import rounded, size_text
from moeplan.calibrate.from_logs import calibrated
from moeplan.calibrate.log_lines import PRICED
from moeplan.calibrate.logs import Log, Row
from moeplan.calibrate.placed import clusters_of, domains, price
from moeplan.calibrate.published import rows_of
from moeplan.caveats import calibration_warnings
from moeplan.errors import SpecError
from moeplan.estimator import estimate
from moeplan.layout import Colocated
from moeplan.spec.calibration import source_of
from moeplan.spec.case import Case
from moeplan.spec.cluster import first_gpus
from moeplan.spec.record import read_toml
from moeplan.spec.shipped import load_calibration, load_cluster, load_model
from moeplan.spec.workload import Workload
from moeplan.units import BytesPerS, Seconds

PATTERNS = {"alltoall": "all_to_all"} | {name: name for name in ("all_reduce", "all_gather", "reduce_scatter")}
H100, BASE = load_cluster("dgx-h100"), load_calibration("h100")
SIZES = [2**power for power in range(16, 34)]
ONE_NODE, TWO, FOUR = [0] * 8, [rank // 8 for rank in range(16)], [rank // 8 for rank in range(32)]


def empty(collective, hosts):
    return Log("x.log", 1, collective, tuple(hosts), (), None, "", 0, (), "")


def timed(collective, hosts, calibration, *, noise=0.0, seed=0, cluster=H100, sizes=SIZES):
    """A log as `calibration` prices it, each time off by up to `noise`."""
    draw, bare = random.Random(seed), empty(collective, hosts)
    seconds = price(cluster, bare)
    taken = [seconds(calibration, size) * (1 + draw.uniform(-noise, noise)) for size in sizes]
    return bare._replace(rows=tuple(Row(size, s, s, 0.0) for size, s in zip(sizes, taken, strict=True)))


def tier(base, *, efficiency, starts, fills, shares, half=None):
    changes = {
        "starts_s": {k: Seconds(v) for k, v in starts.items()},
        "fills_s": {k: Seconds(v) for k, v in fills.items()},
    }
    half_message = base.half_message_bytes if half is None else type(base.half_message_bytes)(half)
    return structs.replace(base, efficiency=efficiency, shares=shares, half_message_bytes=half_message, **changes)


TRUTH = structs.replace(
    BASE,
    node=tier(
        structs.replace(BASE.node, kernel_bytes_per_s=BytesPerS(0.0)),
        efficiency=0.6,
        starts={"all_to_all": 1.5e-5, "all_gather": 2e-5},
        fills={"all_to_all": 4e-6, "all_gather": 1e-6},
        shares={"all_to_all": 0.9, "all_gather": 1.0},
    ),
    network=tier(
        BASE.network,
        efficiency=0.7,
        starts={"all_to_all": 6e-5, "all_reduce": 1e-4},
        fills={"all_to_all": 2e-6, "all_reduce": 8e-6},
        shares={"all_to_all": 0.5, "all_reduce": 1.0},
        half=20000,
    ),
)
BARE = structs.replace(BASE, node=structs.replace(BASE.node, kernel_bytes_per_s=BytesPerS(0.0)))


def numbers(one, name):
    return {
        "rate": one.efficiency * one.shares.get(name, 1.0),
        "start": one.starts_s[name],
        "fill": one.fills_s[name],
    }


def test_numbers_that_made_the_logs_are_found_again():
    logs = [
        timed(name, hosts, TRUTH, noise=0.01, seed=seed)
        for seed, (name, hosts) in enumerate(
            [
                ("all_to_all", ONE_NODE),
                ("all_gather", ONE_NODE),
                ("all_to_all", TWO),
                ("all_to_all", FOUR),
                ("all_reduce", TWO),
                ("all_reduce", FOUR),
            ]
        )
    ]
    found, _ = fitted(logs, H100, BARE)
    for side, names in (("node", ("all_to_all", "all_gather")), ("network", ("all_to_all", "all_reduce"))):
        told, true = getattr(found, side), getattr(TRUTH, side)
        assert told.measured == tuple(sorted(names))
        for name in names:
            assert numbers(told, name)["rate"] == pytest.approx(numbers(true, name)["rate"], rel=0.02)
            assert numbers(told, name) == pytest.approx(numbers(true, name), rel=0.35)
    assert found.network.half_message_bytes == pytest.approx(20000, rel=0.25)


def test_one_bad_point_is_flagged_and_moves_nothing():
    """One point at 30 % of its neighbours: the curve is that of the others, and the file says which size it was."""
    good = timed("all_to_all", TWO, TRUTH, noise=0.01)
    at = SIZES.index(2**30)
    rows = [row._replace(out_s=row.out_s / 0.3) if i == at else row for i, row in enumerate(good.rows)]
    with_it, (curve,) = fitted([good._replace(rows=tuple(rows))], H100, TRUTH)
    without, _ = fitted([good._replace(rows=tuple(row for i, row in enumerate(good.rows) if i != at))], H100, TRUTH)
    assert [row.bytes for row in curve.flagged] == [2.0**30]
    assert with_it.network == without.network
    seconds = [price(H100, good)(with_it, size) for size in SIZES]
    assert all(a < b for a, b in pairwise(seconds))


@settings(max_examples=12)
@given(
    name=st.sampled_from(PRICED),
    hosts=st.sampled_from([ONE_NODE, [0] * 4, TWO, FOUR, [0, 1] * 8, [0, 0, 0, 1, 1]]),
    rate=st.floats(0.2, 1.0),
    start=st.floats(1e-6, 2e-4),
    fill=st.floats(1e-7, 2e-5),
)
def test_a_curve_of_its_own_is_met_whatever_its_numbers(name, hosts, rate, start, fill):
    """Where its share decides: within 2 % on every row that was fitted, of any collective, hosts and placement."""
    side = "network" if max(hosts) else "node"
    told = tier(getattr(BARE, side), efficiency=rate, starts={name: start}, fills={name: fill}, shares={name: 1.0})
    fast = structs.replace(BARE, node=structs.replace(BARE.node, efficiency=1.0, shares={}))
    truth = structs.replace(fast, **{side: told})
    found, (curve,) = fitted([timed(name, hosts, truth)], H100, fast)
    assert curve.flagged == ()
    assert max(errors(curve, found)) < 0.02


def test_what_no_log_tells_stays_and_is_marked():
    """All-reduces between nodes alone (NVIDIA/nccl-tests, issue 78: they say nothing of all-to-all)."""
    found, _ = fitted([timed("all_reduce", TWO, TRUTH)], H100, BASE)
    assert (found.node, found.gemm, found.constants) == (BASE.node, BASE.gemm, BASE.constants)
    network = found.network
    assert network.measured == ("all_reduce",)
    assert network.shares | {"all_reduce": 1} == BASE.network.shares | {"all_reduce": 1}
    assert (source_of(network, "all_reduce"), source_of(network, "all_to_all")) == ("measured", "interpolated")
    case = Case(
        model=load_model("tiny-moe"), cluster=first_gpus(H100, 16), workload=Workload(seq_len=64, global_batch=16)
    )
    told = calibration_warnings(case, found)
    assert any(
        "between nodes: all_to_all, all_gather" in text and "(only all_reduce was measured)" in text for text in told
    )
    assert calibration_warnings(case, BASE) == ()
    assert set(told) <= set(estimate(case, found, Colocated(dp=16, ep=8)).notes)


def test_experts_stay_inside_a_node_where_all_to_all_collapses_between_nodes():
    """0.51 GB/s of all-to-all beside 4.32 of all-reduce on 64 GPUs (NVIDIA/nccl-tests, issue 78).

    On nodes whose 8 GPUs share one NIC the all-reduce alone says most of it, and marks that it does: n - l of n ranks
    are behind that NIC for each of 8. The pair gives both curves their own share.
    """
    hosts, sizes = [rank // 8 for rank in range(64)], [2**power for power in range(24, 31)]
    cluster = structs.replace(H100, node=structs.replace(H100.node, nics=1, nic_bytes_per_s=BytesPerS(5e9)))

    def log_of(name, busbw):
        moved = busbw_factor(name, 64) / busbw
        return empty(name, hosts)._replace(rows=tuple(Row(s, 1e-4 + s * moved, None, busbw) for s in sizes))

    def all_to_all(calibration):
        return 2**30 * 63 / 64 / price(cluster, empty("all_to_all", hosts))(calibration, 2**30)

    def steps(calibration):
        layouts = (Colocated(dp=64, ep=8), Colocated(dp=64, ep=64))
        return [estimate(case, calibration, one).plan.predictions.step_s for one in layouts]

    workload = Workload(seq_len=4096, global_batch=64)
    case = Case(model=load_model("qwen3-30b-a3b"), cluster=first_gpus(cluster, 64), workload=workload)
    alone, _ = fitted([log_of("all_reduce", 4.32e9)], cluster, BASE)
    pair, _ = fitted([log_of("all_reduce", 4.32e9), log_of("all_to_all", 0.51e9)], cluster, BASE)
    assert all_to_all(alone) == pytest.approx(0.51e9, rel=0.25)
    assert all_to_all(pair) == pytest.approx(0.51e9, rel=0.01)
    assert pair.network.shares["all_to_all"] < pair.network.shares["all_reduce"]
    assert "all_to_all" not in alone.network.measured
    (inside, across), (inside_pair, across_pair) = steps(alone), steps(pair)
    assert inside_pair == pytest.approx(inside, rel=0.01)
    assert across_pair > 1.1 * across > 1.1 * inside


def test_a_log_bound_inside_the_node_tells_nothing_of_the_network():
    slow = structs.replace(BASE, node=structs.replace(BASE.node, efficiency=0.01))
    logs = [timed("all_to_all", TWO, slow)]
    found, curves = fitted(logs, H100, slow)
    assert found.network == slow.network
    assert curves[0].side == "network"


@pytest.mark.parametrize("name", PRICED)
def test_shares_of_other_patterns_keep_their_ratio_to_one_that_is_measured(name):
    found, _ = fitted([timed(name, ONE_NODE, TRUTH)], H100, BARE)
    assert found.node.shares.get(name, 1.0) == pytest.approx(BARE.node.shares.get(name, 1.0))
    assert {k: v for k, v in found.node.shares.items() if k != name} == {
        k: v for k, v in BARE.node.shares.items() if k != name
    }


def published_logs(hardware, half):
    """Rows of nccl-tests in `published/collectives.csv` as logs, every second size of each from `half` on."""
    tables = defaultdict(dict)
    for row in rows_of("collectives"):
        known = row["hardware"] == hardware and row["latency_us"] and row["gpus"] and row["message_bytes"]
        if known and row["collective"] in PATTERNS and row["definition_of_bytes"].startswith("nccl-tests"):
            key = PATTERNS[row["collective"]], int(row["gpus"]), int(row["nodes"] or 1)
            tables[key][float(row["message_bytes"])] = float(row["latency_us"]) * 1e-6
    for (name, gpus, nodes), seconds in tables.items():
        rows = [Row(size, taken, None, 0.0) for size, taken in sorted(seconds.items())][half::2]
        yield empty(name, [rank * nodes // gpus for rank in range(gpus)])._replace(rows=tuple(rows))


@pytest.mark.parametrize(
    ("cluster", "hardware"),
    [
        ("dgx-h100", "H100-SXM 80GB"),
        ("dgx-b200", "B200-SXM"),
        ("dgx-b300", "B300-SXM"),
        ("gb200-nvl72", "GB200 NVL72 (OCI)"),
    ],
)
def test_a_fit_to_every_second_published_size_meets_the_others(cluster, hardware):
    """From 1 MiB, sizes that it never saw: 8 % in the median, 35 % at nine of ten."""
    machine = load_cluster(cluster)
    found, _ = fitted(list(published_logs(hardware, 0)), machine, load_calibration("generic"))
    off = []
    for log_ in published_logs(hardware, 1):
        seconds = price(machine, log_)
        off += [abs(log(seconds(found, row.bytes) / row.out_s)) for row in log_.rows if row.bytes >= 2**20]
    assert len(off) >= 7
    assert median(off) < 0.08
    assert sorted(off)[int(0.9 * len(off))] < 0.35


def test_a_rack_of_nvlink_is_one_node_and_two_racks_are_two():
    rack = load_cluster("gb300-nvl72")
    hosts = lambda count: [rank // 4 for rank in range(count)]  # noqa: E731
    assert set(domains(rack, empty("all_to_all", hosts(64)))) == {0}
    two = domains(rack, empty("all_to_all", hosts(128)))
    assert [two.count(0), two.count(1)] == [64, 64]
    with pytest.raises(SpecError, match=r"x.log: line 1: 9 ranks on one host; a node of cluster dgx-h100 has 8 GPUs"):
        domains(H100, empty("all_to_all", [0] * 9))


def test_a_log_that_no_cluster_of_that_kind_can_have_is_refused():
    rows = tuple(Row(size, size / 5e12, None, 5e12) for size in SIZES)
    with pytest.raises(SpecError, match=r"x.log: line 1: all_to_all reaches .* of the node's bandwidth in cluster dgx"):
        fitted([empty("all_to_all", ONE_NODE)._replace(rows=rows)], H100, BARE)
    with pytest.raises(SpecError, match=r"nothing to fit: x.log: no communication measured"):
        fitted([empty("all_to_all", [0])._replace(unused="no communication measured")], H100, BARE)
    with pytest.raises(SpecError, match=r"nothing to fit: x.log: no row of 64 KiB or more"):
        fitted([empty("all_to_all", ONE_NODE)], H100, BARE)


def test_gpus_are_known_by_what_their_driver_calls_them():
    assert clusters_of("NVIDIA H100 80GB HBM3") == ("dgx-h100",)
    assert clusters_of("NVIDIA A100-SXM4-80GB") == ("dgx-a100",)
    assert clusters_of("AMD Instinct MI300X") == ("mi300x",)
    assert clusters_of("AMD Instinct MI250X") == ("frontier", "lumi-g")
    assert clusters_of("NVIDIA GB300") == ("gb300-nvl72",)
    assert clusters_of("NVIDIA RTX A6000") == ()


@pytest.mark.parametrize(("size", "text"), [(1, "1 B"), (65536, "64 KiB"), (2**33, "8 GiB"), (2**40, "1024 GiB")])
def test_sizes_are_said_as_people_say_them(size, text):
    assert size_text(size) == text


def test_numbers_in_a_file_are_rounded_to_what_changes_no_second():
    found, curves = fitted([timed("all_to_all", TWO, TRUTH)], H100, BASE)
    for size in SIZES:
        a, b = (curves[0].price(one, size) for one in (found, rounded(found)))
        assert abs(log(a / b)) < 1e-3


@pytest.fixture
def files(tmp_path, made_log):
    """Two logs of noisy H100 nodes on disk, one with an outlier."""
    found = []
    for name, hosts in (("all_to_all", ONE_NODE), ("all_reduce", TWO)):
        one = timed(name, hosts, TRUTH, noise=0.03, seed=len(found))
        seconds = {int(row.bytes): row.out_s * (4 if row.bytes == 2**28 else 1) for row in one.rows}
        path = tmp_path / f"{name}.log"
        path.write_text(made_log(name, hosts, seconds))
        found.append(path)
    return found


def test_the_written_file_predicts_each_log_within_the_error_it_states(files, tmp_path):
    made = calibrated(files, "mine")
    path = tmp_path / "mine.toml"
    path.write_text(made.text)
    again = load_calibration(path)
    assert again == made.calibration
    for curve in made.curves:
        note = getattr(again, curve.side).note
        (line,) = (
            text for text in note.split("\n") if text.startswith(f"{curve.pattern} (measured): {curve.log.name}")
        )
        stated = float(line.partition("median, ")[2].partition("%")[0]) / 100
        rows = [row for row in curve.log.rows if row not in curve.flagged]
        off = [abs(log(curve.price(again, row.bytes) / row.out_s)) for row in rows]
        assert len(rows) == len(SIZES) - 1
        assert max(off) <= stated + 1e-3
        assert stated < 0.08
        assert "flagged: 256 MiB" in line
        assert any("256 MiB" in text and curve.pattern in text for text in getattr(again, curve.side).flagged)
    assert (again.node.source, again.network.source) == ("measured", "measured")


def test_all_else_in_the_file_is_the_bases_text_with_its_sources(files):
    made = calibrated(files, "mine", like="h100")
    base = load_calibration("h100")
    assert structs.replace(made.calibration, name="h100", node=base.node, network=base.network) == base
    assert "# assumed: uneven arrival, and kernels that share the GPU with others" in made.text
    assert base.network.note.strip() in made.text


def test_a_base_of_any_spelling_gives_the_same_calibration(files, tmp_path):
    """Inline tables and dotted keys cannot be taken out line by line: the file is written anew."""
    from moeplan.toml_text import toml_text

    plain = read_toml(_shipped("h100"))
    network = plain.pop("network")
    inline = (
        "{"
        + ", ".join(f"{k} = {toml_text(v)}" for k, v in network.items() if not isinstance(v, dict)).replace(
            '"""\n', '"""'
        )
        + "}"
    )
    base = tmp_path / "base.toml"
    base.write_text(f"network = {_flat(inline)}\n" + toml_text(plain))
    made = calibrated(files, "mine", like=str(base))
    path = tmp_path / "mine.toml"
    path.write_text(made.text)
    assert load_calibration(path) == made.calibration


def _flat(text):
    return text.replace("\n", " ")


def _shipped(name):
    from moeplan.spec.shipped import calibration_file

    return calibration_file(name)


def test_a_fit_upon_a_fit_keeps_what_the_first_measured(files, tmp_path):
    first = calibrated(files[:1], "first")
    path = tmp_path / "first.toml"
    path.write_text(first.text)
    both = calibrated(files[1:], "both", cluster="dgx-h100", like=str(path))
    assert both.calibration.node == first.calibration.node
    assert both.calibration.network.measured == ("all_reduce",)
    assert both.text.count("[node]") == both.text.count("[network]") == 1


def test_without_a_known_gpu_a_cluster_is_asked_for(tmp_path, made_log):
    path = tmp_path / "all_to_all.log"
    path.write_text(made_log("all_to_all", ONE_NODE, {2**20: 1e-3, 2**21: 2e-3}, gpu="Other GPU"))
    with pytest.raises(SpecError, match=r"the logs name Other GPU: give --cluster; shipped: dgx-a100, "):
        calibrated([path], "mine")
