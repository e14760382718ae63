"""Times exchanges between ranks that begin together, and says what an ideal network would need."""

import math
import time
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.distributed as dist
from cases import model, plan_of
from emulated import PAYLOAD, SEGMENT_BYTES, Network, fork_on
from fluid import Flow, finish_s
from predicted import predicted_m2n_s, predicted_s, seen

from moeplan.layout import Colocated
from moeplan.plan import program_of
from moeplan.tiers import WINDOW, Tiers, group_sizes, places, round_of
from moeplan_exec.all_to_all import all_to_all
from moeplan_exec.clock import Clock
from moeplan_exec.lanes import make_lanes, swap
from moeplan_exec.parcel import Parcel
from moeplan_exec.queues import Incoming, Outgoing
from moeplan_exec.start import join

LEAD_S = 0.06
"""From the agreement on a moment until it comes, and per second of delay many seconds more."""


TIE = 0.05
"""Times whose logarithms are closer than this are equal."""
WIDTH = 1024
"""Bytes of a row of M2N."""


class Timed(NamedTuple):
    """Seconds of an exchange from the first rank's begin to the last one's end.

    Of the best repetition: what else this machine does only adds.
    """

    algorithm: str
    bytes: int
    measured_s: float
    ideal_s: float
    predicted_s: float
    """By the cost model."""


def tiers_of(racks, per_node):
    """Ranks in the order of nodes; the nodes of a rack are a group."""
    nodes = [tuple(range(per_node * a, per_node * (a + 1))) for a in range(sum(racks))]
    cuts = [0, *(sum(racks[: r + 1]) for r in range(len(racks)))]
    return Tiers(nodes=tuple(nodes), groups=tuple(sum(nodes[a:b], ()) for a, b in pairwise(cuts)))


def together(lead_s):
    """Wait for a moment that rank 0 chooses; clocks of one machine agree."""
    moment = torch.tensor([time.perf_counter() + lead_s], dtype=torch.float64)
    dist.broadcast(moment, 0)
    time.sleep(max(0.0, float(moment) - time.perf_counter()))


def spans(works, repetitions, lead_s):
    """[work][repetition]: (begin, end) on this rank; one work after the other, so that a pause hits no work's all."""
    found = [[] for _ in works]
    for _ in range(repetitions):
        for work, of_work in zip(works, found, strict=True):
            together(lead_s)
            begin = time.perf_counter()
            work()
            of_work.append((begin, time.perf_counter()))
    return found


def best(by_rank):
    """Seconds of each work: the least of the repetitions of the last end less the first begin."""
    return [
        min(max(e for _, e in r) - min(b for b, _ in r) for r in zip(*of_ranks, strict=True))
        for of_ranks in zip(*by_rank, strict=True)
    ]


def time_all_to_all(network: Network, per_node: int, sizes, *, window=WINDOW, repetitions=4) -> list[Timed]:
    """Even all-to-alls of `sizes` bytes per pair of ranks by every algorithm.

    What a node's ranks swap among themselves is measured alone, and added where the algorithm waits for it.
    """
    tiers = tiers_of(network.shape.racks, per_node)
    size = per_node * len(network.nodes)

    def body(start, report):
        torch.set_num_threads(1)
        join(start, "cpu", timeout_s=60, token="")
        lanes = make_lanes(tiers, start.rank, window=window)
        works = []
        for each in sizes:
            rows, ones = torch.zeros(size, each, dtype=torch.uint8), [1] * size
            of_mates = [len(network.nodes)] * per_node

            def inside(rows=rows, of_mates=of_mates):
                swap(rows.split(of_mates), of_mates, lanes.inside[0] if lanes.inside else None).wait()

            works.append(inside)
            for algorithm in ("flat", "two_level", "halo", "halo_chunked"):
                works.append(lambda a=algorithm, r=rows, o=ones: all_to_all(r, o, o, lanes, algorithm=a))
        return spans(works, repetitions, LEAD_S + 20 * network.shape.uplink_delay_s)

    seconds = best(fork_on(network, [r // per_node for r in range(size)], body))
    found, small, large = [], min(sizes), max(sizes)
    first, last = (5 * list(sizes).index(one) for one in (small, large))
    of_mates = [(small, seconds[first]), (large, seconds[last])]
    model = seen(network.shape, per_node, of_mates, (small, seconds[first + 1]))
    for i, each in enumerate(sizes):
        inside, *measured = seconds[5 * i : 5 * i + 5]
        far = 1 - per_node / size
        added = {"flat": 0.0, "two_level": inside, "halo": far * inside, "halo_chunked": far * inside}
        for algorithm, took in zip(added, measured, strict=True):
            ideal = ideal_s(network, per_node, algorithm, each, window) + added[algorithm]
            found.append(Timed(algorithm, each, took, ideal, predicted_s(model, algorithm, each)))
    return found


def ideal_s(network: Network, per_node: int, algorithm: str, each: int, window: int) -> float:
    """Seconds that the messages between nodes need, on max-min fair links."""
    nodes = range(len(network.nodes))
    found = places(tiers_of(network.shape.racks, per_node))
    flows = []
    for a, b in ((a, b) for a in nodes for b in nodes if a != b):
        turn = 0 if algorithm == "flat" else round_of(found[a], found[b], group_sizes(found)) // window
        for i, j in ((i, j) for i in range(per_node) for j in range(per_node)):
            ends = per_node * a + i, per_node * b + j
            if algorithm == "flat":
                flows.append(flow(network, a, b, *ends, each, 0))
            elif i == j:
                flows.append(flow(network, a, b, *ends, per_node * each, turn))
    return max(finish_s(flows, rates(network), dict.fromkeys(range(per_node * len(nodes)), 0.0)).values())


def flow(network, a, b, source, target, size, window):
    """A message from a rank on node `a` to one on node `b`: both ends tell each other first, then it travels.

    Where frames have a price, the last one counts as a full one.
    """
    racks = network.rack_of(a), network.rack_of(b)
    far = racks[0] != racks[1]
    if network.shape.uplink_frame_s and far:
        size = -(-size // SEGMENT_BYTES) * SEGMENT_BYTES
    links = (f"out{a}", *((f"up{racks[0]}", f"down{racks[1]}") if far else ()), f"in{b}")
    return Flow(source, target, size, links, 2 * network.shape.uplink_delay_s * far, window)


def rates(network):
    """Bytes of data per second of each link."""
    nic, uplink = (r / 8 * PAYLOAD for r in (network.shape.nic_bit_per_s, network.shape.uplink_bit_per_s))
    if network.shape.uplink_frame_s:
        uplink = min(uplink, SEGMENT_BYTES / network.shape.uplink_frame_s)
    nics = {f"{way}{n}": nic for n in range(len(network.nodes)) for way in ("out", "in")}
    return nics | {f"{way}{r}": uplink for r in range(len(network.shape.racks)) for way in ("up", "down")}


def crossings(sizes, ours, others):
    """[(size, 1 or -1)]: where `ours` (seconds by size) begins to be faster, or slower, than `others`.

    On the line through the logarithms of the nearest sizes at which they differ by more than TIE.
    """
    sure = [
        (math.log(size), math.log(other / own))
        for size, own, other in zip(sizes, ours, others, strict=True)
        if abs(math.log(other / own)) > TIE
    ]
    return [
        (math.exp(x + (u - x) * y / (y - v)), int(math.copysign(1, v)))
        for (x, y), (u, v) in pairwise(sure)
        if y * v < 0
    ]


def time_m2n(network: Network, sides, sizes, *, repetitions=4) -> list[Timed]:
    """Rows of `sizes` bytes in all, a seventh more to each further receiver, from sides[0] ranks to sides[1] ranks.

    By the executor's queues: headers, then rows. Ranks stand one on a node, the two sides in a rack each.
    """
    senders, receivers = range(sides[0]), range(sides[0], sum(sides))
    program = program_of(plan_of(model(num_layers=2), Colocated(pp=2), 2, global_batch=repetitions * len(sizes)))
    sends, receives = (
        next([program.ops[n] for n in s.ops] for s in program.streams if s.name.startswith(f"{half} send.F"))
        for half in ("send", "receive")
    )
    shares = [7 + j for j in range(sides[1])]
    counts = [[size // WIDTH * share // sum(shares) // sides[0] for share in shares] for size in sizes]

    def body(start, report):
        torch.set_num_threads(1)
        device = join(start, "cpu", timeout_s=60, token="")
        group, clock, found = dist.new_group(list(range(sum(sides)))), Clock(program, start.rank), []
        if start.rank in senders:
            out = Outgoing(receivers, group, clock)
        else:
            columns = {op.id: ((torch.uint8, WIDTH),) for op in receives}
            come = Incoming(receives, columns, senders, group, clock, device)
        for n, (send, receive) in enumerate(zip(sends, receives, strict=True)):
            rows = counts[n % len(sizes)]
            parcel = Parcel((torch.zeros(sum(rows), WIDTH, dtype=torch.uint8),), (tuple(rows),))
            together(LEAD_S + 20 * network.shape.uplink_delay_s)
            begin = time.perf_counter()
            if start.rank in senders:
                out.post(send, parcel)
            else:
                come.take(receive)
            found.append((begin, time.perf_counter()))
            dist.barrier()
        (out if start.rank in senders else come).close()
        return [found[i :: len(sizes)] for i in range(len(sizes))]

    seconds = best(fork_on(network, range(sum(sides)), body))
    result = []
    for size, rows, took in zip(sizes, counts, seconds, strict=True):
        flows = [flow(network, s, r, s, r, WIDTH * n, 0) for s in senders for r, n in zip(receivers, rows, strict=True)]
        ideal = max(finish_s(flows, rates(network), dict.fromkeys(range(sum(sides)), 0.0)).values())
        told = [(s, r, WIDTH * n) for s in senders for r, n in zip(receivers, rows, strict=True)]
        at = seen(network.shape, 1, [(1, 1.0), (1, 1.0)], (1, 0.0))
        result.append(Timed("m2n", size, took, ideal, predicted_m2n_s(at, told)))
    return result
