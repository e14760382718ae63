"""Logs of nccl-tests made from seconds that are known: what a test fits again."""

from pathlib import Path

import pytest

from moeplan.calibrate.busbw import busbw_factor

LOGS = Path(__file__).parent.parent / "fixtures" / "logs"
PERF = {
    "all_to_all": "alltoall",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "point_to_point": "sendrecv",
}
HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"""


def log_text(collective, hosts, seconds, *, gpu="NVIDIA H100 80GB HBM3", header=HEADER):
    """A log among ranks on `hosts` (the host of each), with `seconds` by size, in place as out of place."""
    ranks = len(hosts)
    per_peer = ranks if collective in ("all_to_all", "all_gather", "reduce_scatter") else 1
    devices = [
        f"#  Rank {rank:2} Group  0 Pid {1000 + rank} on node-{host} device {hosts[:rank].count(host)} [0:05:00] {gpu}"
        for rank, host in enumerate(hosts)
    ]
    rows, total = [], 0.0
    for size, taken in sorted(seconds.items()):
        algbw = size / taken / 1e9
        busbw = algbw * busbw_factor(collective, ranks)
        total += busbw
        one = f"{taken * 1e6:11.3f} {algbw:9.4f} {busbw:9.4f}"
        rows.append(f"{size:12} {size // per_peer // 4:13}     float    none      -1 {one}      0 {one}    N/A")
    step = f"minBytes {min(seconds)} maxBytes {max(seconds)} step: 2(factor)"
    return "\n".join(
        [
            f"# Collective test starting: {PERF[collective]}_perf",
            f"# nThread 1 nGpus 1 {step} warmup iters: 1 iters: 20",
            "# Using devices",
            *devices,
            "#",
            header,
            *rows,
            "# Out of bounds values : 0 OK",
            f"# Avg bus bandwidth    : {total / len(seconds):g}",
            "#",
            f"# Collective test concluded: {PERF[collective]}_perf",
            "",
        ]
    )


@pytest.fixture(scope="session")
def made_log():
    """made_log(collective, hosts, seconds by size): the text of a log."""
    return log_text


@pytest.fixture(scope="session")
def logs():
    """The folder of logs that ship with the tests."""
    return LOGS
