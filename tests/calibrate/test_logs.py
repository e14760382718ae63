"""Logs of nccl-tests and rccl-tests as people have them: glued, cut, noisy, of one rank, of several tables."""

import re
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeplan.calibrate.busbw import busbw_factor, busbw_limit
from moeplan.calibrate.log_lines import PRICED
from moeplan.calibrate.logs import parse_logs, read_logs
from moeplan.errors import SpecError

SIZES = {2**power: 2e-5 + 2**power / 300e9 for power in range(16, 30)}
HOSTS = [0] * 8 + [1] * 8


def one(text, name="x.log"):
    (log,) = parse_logs(text, name)
    return log


def test_a_table_with_a_glued_header_gives_both_columns_and_keeps_the_printed_average(logs):
    """Published log of 4 GPUs of a GB300 tray (oracle-quickstart); its average covers rows that are not shown."""
    (log,) = read_logs(logs / "alltoall_perf_1node_4gpu.log")
    assert (log.collective, log.ranks, log.nodes, log.per_node, log.gpu) == ("all_to_all", 4, 1, 4, "NVIDIA GB300")
    assert [row.bytes for row in log.rows] == [2.0**33, 2.0**34]
    assert [row.busbw_bytes_per_s / 1e9 for row in log.rows] == pytest.approx([624.98, 627.69])
    assert [row.bytes / row.out_s / 1e9 for row in log.rows] == pytest.approx([833.31, 836.92], rel=1e-4)
    assert [row.bytes / row.in_s / 1e9 * 0.75 for row in log.rows] == pytest.approx([673.32, 680.70], rel=1e-4)
    assert log.average_bytes_per_s == pytest.approx(381.478e9)
    shown = mean([624.98, 627.69, 673.32, 680.70])
    assert f"average 381.478 GB/s as printed is not that of the rows shown, {shown:.6g}" in log.notes
    assert "2 of 16 rows shown" in log.notes


def test_a_list_of_devices_with_gaps_still_gives_ranks_and_hosts(logs):
    (log,) = read_logs(logs / "alltoall_perf_1rack_64gpu.log")
    assert (log.ranks, log.nodes, log.per_node) == (64, 16, 4)
    assert "4 of 64 ranks listed: 4 taken as on each host" in log.notes
    last = log.rows[-1]
    assert last.bytes / last.out_s * busbw_factor("all_to_all", 64) == pytest.approx(666.92e9, rel=1e-4)


def test_an_all_reduce_is_never_an_all_to_all(logs):
    """Told by the command line alone, behind the marks of mpirun and colours of a warning."""
    (log,) = read_logs(logs / "rccl_2node_16gpu.log")
    assert (log.collective, log.ranks, log.nodes, len(log.rows), log.notes) == ("all_reduce", 16, 2, 11, ())
    assert log.gpu == "AMD Instinct MI300X"
    assert log.average_bytes_per_s == pytest.approx(mean(row.busbw_bytes_per_s for row in log.rows), rel=1e-4)


@pytest.mark.parametrize(
    ("collective", "ranks", "algbw", "busbw"),
    [
        ("all_to_all", 64, 677.51, 666.92),
        ("all_to_all", 4, 836.92, 627.69),
        ("all_reduce", 16, 182.15, 341.53),
        ("all_reduce", 4, 438.20, 657.31),
        ("all_to_all", 128, 89.33, 88.63),
    ],
)
def test_busbw_has_the_factor_of_its_collective(collective, ranks, algbw, busbw):
    """Rows of oracle-quickstart (GB300, GB200) and of a public report of rccl-tests on two nodes of MI300X."""
    assert algbw * busbw_factor(collective, ranks) == pytest.approx(busbw, rel=1e-4)


def test_other_factors_are_those_of_nccl_tests():
    assert busbw_factor("point_to_point", 8) == busbw_factor("broadcast", 8) == 1
    assert busbw_factor("all_gather", 8) == busbw_factor("reduce_scatter", 8) == 7 / 8
    assert busbw_factor("all_reduce", 1) == busbw_factor("all_to_all", 1) == 0
    with pytest.raises(SpecError, match="among 0 ranks"):
        busbw_factor("all_reduce", 0)


def test_network_cards_limit_busbw_between_hosts_not_inside_one():
    """Two nodes of 8 GPUs with 50 GB/s each: 93.75 GB/s of all-to-all (NVIDIA/nccl-tests, pull request 59)."""
    assert busbw_limit("all_to_all", HOSTS, 50e9) == pytest.approx(93.75e9)
    assert busbw_limit("all_gather", HOSTS, 50e9) == pytest.approx(8 * 93.75e9)
    assert busbw_limit("all_to_all", [0] * 8, 50e9) == float("inf")
    assert busbw_limit("all_to_all", list(range(8)), 50e9) == pytest.approx(50e9)


@given(nodes=st.integers(2, 6), local=st.integers(1, 6))
def test_the_limit_is_what_leaves_the_busiest_host(nodes, local):
    """An all-to-all of S bytes per rank sends S local (n - local) / n out of each host."""
    ranks, nic = nodes * local, 25e9
    seconds = local * (ranks - local) / ranks / (local * nic)
    hosts = [rank // local for rank in range(ranks)]
    assert busbw_limit("all_to_all", hosts, nic) == pytest.approx(busbw_factor("all_to_all", ranks) / seconds)


def test_one_rank_measures_no_communication(made_log):
    log = one(made_log("all_to_all", [0], {1024: 1e-5, 2048: 1e-5}))
    assert (log.ranks, log.unused) == (1, "no communication measured: one rank")


def test_worlds_of_one_rank_side_by_side_measure_no_communication(made_log):
    """Each process started without MPI is a world of its own; their lines mix (NVIDIA/nccl-tests, issue 294)."""
    text = made_log("all_reduce", [0], {1024: 1e-5, 2048: 1e-5})
    mixed = "\n".join(line for line in text.split("\n") for _ in range(8))
    found = parse_logs(mixed, "all_reduce.log")
    assert {log.unused for log in found} == {"no communication measured: one rank"}


@pytest.mark.parametrize("collective", PRICED)
def test_each_collective_is_read_back(collective, made_log):
    log = one(made_log(collective, HOSTS, SIZES))
    assert (log.collective, log.hosts, log.notes, log.unused) == (collective, tuple(HOSTS), (), "")
    assert {row.bytes: row.out_s for row in log.rows} == pytest.approx(SIZES, rel=1e-3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("busbw #wrong", "busbw#wrong"),
        ("busbw #wrong", "busbw  error"),
        ("\n", "\r\n"),
        ("# Using", "\x1b]0;title\x07\x1b[1;32m# Using"),
        ("\n", "\n[1,12]<stdout>:"),
        ("\n", "\n0: "),
        ("      0 ", "    N/A "),
        ("#  Rank", "ncclInit: 8 8 float\n#  Rank"),
    ],
)
def test_what_surrounds_a_table_changes_nothing(old, new, made_log):
    text = made_log("all_to_all", HOSTS, SIZES)
    plain, other = one(text), one(text.replace(old, new))
    assert (other.rows, other.hosts, other.collective, other.notes) == (
        plain.rows,
        plain.hosts,
        plain.collective,
        plain.notes,
    )


def test_times_may_be_whole_or_in_powers_of_ten(made_log):
    text = made_log("all_reduce", HOSTS, {2**20: 1e-3, 2**21: 2e-3})
    assert "1000.000" in text
    for spelled in ("1000", "1e3", "1.0E+03"):
        assert one(text.replace("1000.000", spelled)).rows == one(text).rows


NOISE = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=40).map(lambda text: f"x: {text}")


@given(data=st.data())
def test_noise_between_lines_changes_no_row(data, made_log):
    lines = made_log("all_to_all", HOSTS, SIZES).split("\n")
    for _ in range(5):
        lines.insert(data.draw(st.integers(0, len(lines))), data.draw(NOISE))
    assert one("\n".join(lines)).rows == one(made_log("all_to_all", HOSTS, SIZES)).rows


@given(data=st.data())
def test_a_log_cut_anywhere_gives_some_of_its_rows_or_one_line_of_error(data, made_log):
    text = made_log("all_to_all", HOSTS, SIZES)
    whole = {(row.bytes, row.out_s) for row in one(text).rows}
    end = data.draw(st.integers(0, len(text)))
    if end < text.index("type") + len("type"):
        with pytest.raises(SpecError, match=r"^alltoall_2node.log: no table [^\n]*$"):
            parse_logs(text[:end], "alltoall_2node.log")
        return
    for log in parse_logs(text[:end], "alltoall_2node.log"):
        assert {(row.bytes, row.out_s) for row in log.rows} <= whole
        assert len(log.rows) == len(whole) or log.notes


@pytest.mark.parametrize(
    ("row", "note"),
    [
        ("1048576  65536  float  none  -1   12.5", "ends after 1 of time, algbw and busbw"),
        ("1048576  65536  float  none  -1   abc  1.0  2.0  0", "'abc' is not a number"),
        ("1048576  65536  float  none  -1   0.0  0.0  0.0  0  0.0 0.0 0.0 0", "time 0 us is not more than 0"),
        ("1048576  65536  float  none  -1   10.0  50.0  46.9  0  10 50 46 0", "is 104.9 GB/s, not the algbw 50"),
    ],
)
def test_rows_that_cannot_be_meant_are_left_out_and_told(row, note, made_log):
    text = made_log("all_to_all", [0] * 4, {2**20: 1e-3, 2**21: 2e-3})
    lines = text.split("\n")
    at = next(i for i, line in enumerate(lines) if "2097152" in line and not line.startswith("#"))
    log = one("\n".join([*lines[:at], row, *lines[at + 1 :]]))
    assert [row.bytes for row in log.rows] == [2.0**20]
    assert any(f"line {at + 1}: " in told and note in told for told in log.notes)


def test_a_size_may_come_twice_and_once_without_its_second_half(made_log):
    text = made_log("all_to_all", [0] * 4, {2**20: 1e-3, 2**21: 2e-3})
    row = next(line for line in text.split("\n") if line.startswith("     2097152 "))
    log = one(text.replace(row, f"{row}\n{row[:80]}"))
    assert [(row.bytes, row.in_s) for row in log.rows] == [(2.0**20, 1e-3), (2.0**21, 2e-3), (2.0**21, None)]


@pytest.mark.parametrize("rank", ["131072", "99999999999999999999"])
def test_more_ranks_than_any_machine_has_are_a_slip(rank, made_log):
    text = made_log("all_reduce", [0] * 4, {2**20: 1e-3, 2**21: 2e-3}).replace("Rank  3", f"Rank  {rank}")
    with pytest.raises(SpecError, match=r"x\.log: line 10: \d+ ranks; at most 131072"):
        one(text)


def test_rows_of_no_bytes_or_of_wrong_values_are_left_out(made_log):
    text = made_log("all_to_all", [0] * 4, {2**20: 1e-3, 2**21: 2e-3, 2**22: 4e-3})
    text = re.sub(r"(?m)^ +1048576 +65536 ", "  0  0  ", text)
    lines = [line.replace("      0 ", "      7 ") if " 4194304 " in line else line for line in text.split("\n")]
    log = one("\n".join(lines))
    assert [row.bytes for row in log.rows] == [2.0**21]
    assert "1 rows of 0 bytes; left out" in log.notes
    assert any("7 wrong values; left out" in told for told in log.notes)


def test_a_row_whose_second_half_is_cut_keeps_its_first(made_log):
    text = made_log("all_to_all", [0] * 4, {2**20: 1e-3, 2**21: 2e-3})
    row = next(line for line in text.split("\n") if line.startswith("     2097152 "))
    log = one(text[: text.index(row) + 80])
    assert [(row.bytes, row.in_s) for row in log.rows] == [(2.0**20, 1e-3), (2.0**21, None)]
    assert {"ends before its average"} < set(log.notes)


def test_several_tables_of_one_file_are_told_apart(made_log):
    first, second = made_log("all_reduce", HOSTS, SIZES), made_log("all_to_all", [0] * 8, SIZES)
    found = parse_logs(f"{first}+ srun ./alltoall_perf -b 64K\n{second}", "job-17.out")
    assert [(log.collective, log.ranks, log.nodes) for log in found] == [("all_reduce", 16, 2), ("all_to_all", 8, 1)]
    bare = [line for line in second.split("\n") if "Collective test" not in line]
    cut = first[: first.index("# Out of bounds")]
    found = parse_logs("\n".join([cut, "+ srun ./alltoall_perf -b 64K", *bare]), "job-17.out")
    assert [(log.collective, log.ranks, len(log.rows)) for log in found] == [
        ("all_reduce", 16, len(SIZES)),
        ("all_to_all", 8, len(SIZES)),
    ]


def test_the_files_name_tells_what_the_log_does_not(made_log):
    text = made_log("all_to_all", HOSTS, SIZES)
    bare = "\n".join(line for line in text.split("\n") if "Rank" not in line and "Collective" not in line)
    log = one(bare, "alltoall_2node_16gpu.log")
    assert (log.collective, log.ranks, log.nodes) == ("all_to_all", 16, 2)
    with pytest.raises(SpecError, match=r"job.log: line 5: no collective is named .* name the file alltoall, all_red"):
        one(bare, "job.log")
    with pytest.raises(SpecError, match="no device list says the hosts of 16 ranks; name the file as all_to_all_2node"):
        one(bare, "alltoall.log")


def test_a_name_against_the_numbers_is_not_believed(made_log):
    """An all-reduce in a file called alltoall: busbw is 1.875 of algbw, which no all-to-all of 16 ranks prints."""
    text = made_log("all_reduce", HOSTS, SIZES)
    bare = "\n".join(line for line in text.split("\n") if "Collective" not in line)
    assert "which is not all_to_all among 16 ranks (0.9375)" in one(bare, "alltoall.log").unused


def test_what_no_cost_prices_is_told(made_log):
    text = made_log("point_to_point", HOSTS, SIZES).replace("sendrecv_perf", "broadcast_perf")
    assert one(text).unused.startswith("broadcast is not priced; all_to_all, ")


@pytest.mark.parametrize("text", ["", "hello\n", "{}", "8388608 2097152 fruit sum -1 1 2 3"])
def test_a_file_without_a_table_is_refused(text):
    with pytest.raises(
        SpecError, match=r"x\.log: no table of nccl-tests or rccl-tests in [12] lines; right is one with"
    ):
        parse_logs(text, "x.log")
