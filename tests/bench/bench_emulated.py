"""Times of all-to-alls and of M2N on emulated networks beside an ideal one: python tests/bench/bench_emulated.py

Ideal: max-min fair flows, NICs and uplinks shared, bytes of headers counted; what a node's ranks swap among themselves
is measured alone. Not in it: what a message costs at its ends, buckets that are full at the start, TCP's slow start.
"""

import os
import statistics
import sys
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # names of addresses are not known here
sys.path[:0] = [str(Path(__file__).parent.parent / folder) for folder in ("net", "exec")]

from emulated import Shape, Unavailable, bucket_bytes, emulated  # noqa: E402
from timed import crossings, time_all_to_all, time_m2n  # noqa: E402

from moeplan.tiers import WINDOW  # noqa: E402

KIB = 1024
BUCKETS = 8
"""Full buckets on the narrowest link from which on a message counts as large."""
CASES = [
    # ranks per node, delay and price of a frame of an uplink in ms, NIC, uplink and inside of a node (0: unbounded) in
    # Mbit/s, window, KiB per pair
    (2, 0, 0, 200, 200, 0, 4, (4, 64, 256, 1024)),
    (4, 0, 0, 200, 200, 0, 4, (4, 16, 64, 128, 256)),
    (4, 0, 0, 200, 400, 0, 4, (16, 64, 256)),
    (4, 0, 0, 200, 400, 400, 4, (16, 64, 256)),
    (4, 0, 0, 200, 200, 0, 1, (64, 256)),
    (2, 5, 0, 200, 200, 0, 4, (4, 64, 256)),
    (4, 0, 1, 200, 200, 200, 4, (1, 2, 4, 8.5, 17, 34)),
]
M2N = [(1, 4), (2, 3), (3, 2)]


def show_all_to_all(per_node, delay, frame, nic, uplink, inside, window, sizes):
    """Print a table; relative errors of large messages."""
    delay_s, frame_s = 1e-3 * delay, 1e-3 * frame
    shape = Shape((2, 2), nic * 1e6, uplink * 1e6, delay_s, frame_s, inside * 1e6)
    print(
        f"\n2 racks x 2 nodes x {per_node} ranks, NIC {nic}, uplink {uplink}, inside {inside or 'unbounded'} Mbit/s,"
        f" delay {delay} ms, {frame} ms a frame, window {window}"
    )
    print("   KiB  buckets  algorithm     measured ms  ideal ms  error  predicted ms  error")
    errors, counts = [], window == WINDOW
    with emulated(shape) as network:
        found = time_all_to_all(network, per_node, [int(KIB * size) for size in sizes], window=window)
        for t in found:
            buckets = (2 * per_node) ** 2 * t.bytes / bucket_bytes(uplink * 1e6)
            told = show(t, buckets, f"{t.bytes / KIB:6.1f}  {buckets:7.1f}  {t.algorithm:12}")
            errors += told if counts else []
    flat, halo = ([t for t in found if t.algorithm == name] for name in ("flat", "halo"))
    for name in ("measured_s", "ideal_s", "predicted_s"):
        times = [[getattr(t, name) for t in of_one] for of_one in (halo, flat)]
        found_at = crossings(sizes, *times)
        where = [f"{size:.1f} KiB ({'flat' if ahead < 0 else 'HALO'} after)" for size, ahead in found_at]
        print(f"HALO and flat cross, {name[:-2]}: {', '.join(where) or 'nowhere'}")
    return errors


def show_m2n(sides):
    """Print a table of transfers from `sides[0]` to `sides[1]` ranks; relative errors of large messages."""
    print(f"\nM2N {sides[0]} -> {sides[1]} ranks by the executor's queues, one a node, NIC and uplink 200 Mbit/s")
    print("   MiB  buckets  algorithm     measured ms  ideal ms  error  predicted ms  error")
    errors = []
    with emulated(Shape(racks=sides)) as network:
        for t in time_m2n(network, sides, [KIB * KIB * size for size in (1, 4, 12)]):
            buckets = t.bytes / bucket_bytes(200e6)
            errors += show(t, buckets, f"{t.bytes / KIB / KIB:6.0f}  {buckets:7.1f}  {t.algorithm:12}")
    return errors


def show(timed, buckets, title):
    """Print a line; the relative errors of ideal and prediction if it counts."""
    ideal, predicted = (timed.measured_s / told - 1 for told in (timed.ideal_s, timed.predicted_s))
    print(
        f"{title} {1e3 * timed.measured_s:12.1f} {1e3 * timed.ideal_s:9.1f} {ideal:+6.1%}"
        f" {1e3 * timed.predicted_s:13.1f} {1 / (1 + predicted) - 1:+6.1%}"
    )
    return [(abs(ideal), abs(1 / (1 + predicted) - 1))] * (buckets >= BUCKETS)


def main():
    """All tables, then the median error of large messages."""
    try:
        exchanges = [error for case in CASES for error in show_all_to_all(*case)]
        transfers = [error for sides in M2N for error in show_m2n(sides)]
    except Unavailable as reason:
        print(f"skipped: {reason}")
        return
    for name, both in (("all-to-all", exchanges), ("M2N", transfers)):
        for which, errors in zip(("ideal", "predicted"), zip(*both, strict=True), strict=True):
            print(
                f"\n{name}, {which}, {BUCKETS} buckets and more: {len(errors)} rows,"
                f" median error {statistics.median(errors):.1%}, largest {max(errors):.1%}"
            )


if __name__ == "__main__":
    main()
