"""Seconds of CPU of the graph of a machine and of the all-to-all of all its expert groups:
python tests/bench/bench_network.py [NAME ...]

`next to each other` are groups of neighbouring ranks, `one of eight` groups that take one rank of eight, so that they
span eight times as many nodes. The milliseconds are what the all-to-all of 64 MiB takes.
"""

import sys
import time

from msgspec import structs

from moeplan.cost.communication import all_to_all
from moeplan.spec.cluster import Dragonfly, num_ranks
from moeplan.spec.shipped import load_calibration, load_cluster
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric

SIZES = (8, 16, 32, 64, 128, 256)


def spent(work, *given):
    """What `work` gives, and its seconds of CPU."""
    start = time.process_time()
    found = work(*given)
    return found, time.process_time() - start


def groups(ranks, size, step):
    """Groups of `size` ranks, `step` apart."""
    span = size * step
    return [range(i, i + span, step) for first in range(0, ranks - span + 1, span) for i in range(first, first + step)]


def machines(names):
    """The clusters by name, dragonflies with either routing."""
    for name in names:
        cluster = load_cluster(name)
        for routing in ("minimal", "adaptive") if isinstance(cluster.network, Dragonfly) else ("",):
            told = {"routing": routing} if routing else {}
            yield f"{name} {routing}", structs.replace(cluster, network=structs.replace(cluster.network, **told))


def main():
    for name, cluster in machines(sys.argv[1:] or ("frontier", "lumi-g", "dgx-h100", "gb200-nvl72")):
        graph, built = spent(build, cluster)
        fabric, read = spent(Fabric, graph)
        calibration = load_calibration(cluster.calibration)
        print(f"{name}: {num_ranks(cluster):,} GPUs, graph {built:.2f} s, its arrays {read:.2f} s")
        for size in SIZES:
            for what, step in (("next to each other", 1), ("one of eight", 8)):
                asked = groups(num_ranks(cluster), size, step)
                cost, seconds = spent(all_to_all, fabric, calibration, asked, 2**26)
                print(f"  {len(asked):6,} groups of {size:3} {what:18} {seconds:6.3f} s ({cost.seconds * 1e3:.2f} ms)")


if __name__ == "__main__":
    main()
