"""The emulated network does what it says, all-to-alls bring the right rows over it, and HALO's phases overlap on it."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from moeplan_exec.all_to_all import ALGORITHMS, all_to_all
from moeplan_exec.lanes import make_lanes
from moeplan_exec.start import join


def on_network(network, per_node, work):
    """`work(lanes)` on all ranks; results by rank."""
    from emulated import fork_on
    from timed import tiers_of

    def body(start, report):
        torch.set_num_threads(1)
        join(start, "cpu", timeout_s=60, token="")
        return work(make_lanes(tiers_of(network.shape.racks, per_node), start.rank))

    return fork_on(network, [r // per_node for r in range(per_node * len(network.nodes))], body)


@pytest.mark.parametrize(("source", "target", "rate"), [(0, 1, 400e6), (0, 2, 100e6)], ids=["in a rack", "across"])
def test_a_message_takes_its_bytes_over_the_slowest_rate_of_its_way(make_network, source, target, rate):
    from emulated import PAYLOAD, bucket_bytes

    network = make_network(nic_bit_per_s=400e6, uplink_bit_per_s=100e6)
    size = 16 * bucket_bytes(rate)

    def work(lanes):
        data, took = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(4):
            dist.barrier()
            start = time.perf_counter()
            if lanes.rank == source:
                dist.send(data, target)
                dist.recv(data[:1], target)
            elif lanes.rank == target:
                dist.recv(data, source)
                dist.send(data[:1], source)
            took.append(time.perf_counter() - start)
        return took

    took = on_network(network, 1, work)[source]
    ideal = 8 * size / PAYLOAD / rate
    unshaped = 3 * 8 * bucket_bytes(400e6) / rate
    assert min(took) > ideal - unshaped
    assert min(took) < 1.5 * ideal


def test_an_uplink_delays_both_ways(make_network):
    network = make_network(uplink_delay_s=0.02)

    def work(lanes):
        token, took = torch.zeros(1), {1: [], 2: []}
        for other in (1, 2, 1, 2, 1, 2):
            dist.barrier()
            start = time.perf_counter()
            for source, target in ((0, other), (other, 0)):
                if lanes.rank == source:
                    dist.send(token, target)
                elif lanes.rank == target:
                    dist.recv(token, source)
            took[other].append(time.perf_counter() - start)
        return {other: min(seconds) for other, seconds in took.items()}

    took = on_network(network, 1, work)[0]
    assert took[2] > 2 * 2 * 0.02 > 0.04 > took[1]


def test_small_messages_pay_for_a_frame_each(make_network):
    network = make_network(uplink_frame_s=0.005)

    def work(lanes):
        took = {400: [], 8000: []}
        for size in (400, 8000, 400, 8000, 400, 8000):
            dist.barrier()
            start = time.perf_counter()
            if lanes.rank == 0:
                for _ in range(10):
                    dist.send(torch.zeros(size, dtype=torch.uint8), 2)
            elif lanes.rank == 2:
                for _ in range(10):
                    dist.recv(torch.zeros(size, dtype=torch.uint8), 0)
            took[size].append(time.perf_counter() - start)
        return [min(seconds) for seconds in took.values()]

    took = on_network(network, 1, work)[2]
    assert 0.05 < min(took) <= max(took) < 2 * min(took)


def test_rows_arrive_bit_for_bit_between_sixteen_ranks_on_four_nodes(make_network):
    def work(lanes):
        counts = torch.randint(0, 60, (16, 16), generator=torch.Generator().manual_seed(0))
        counts[counts < 20] = 0
        sent, received = counts[lanes.rank].tolist(), counts[:, lanes.rank].tolist()
        torch.manual_seed(lanes.rank)
        rows, weight = torch.randn(sum(sent), 64), torch.randn(sum(received), 64)
        found = []
        for algorithm in ALGORITHMS:
            leaf = rows.clone().requires_grad_()
            arrived = all_to_all(leaf, sent, received, lanes, algorithm=algorithm)
            (arrived * weight).sum().backward()
            found.append((arrived.detach(), leaf.grad))
        return [all(map(torch.equal, found[0], other)) for other in found]

    assert on_network(make_network(nic_bit_per_s=1e9, uplink_bit_per_s=1e9), 4, work) == [[True] * 4] * 16


def test_phase_one_lies_inside_two_and_three(make_network):
    def work(lanes):
        spans, each = {}, [128] * 8
        rows = torch.zeros(sum(each), 1024, dtype=torch.uint8)
        all_to_all(rows, each, each, lanes, log=lambda name, start, end: spans.update({name: (start, end)}))
        return spans

    for spans in on_network(make_network(), 2, work):
        assert spans["II"][0] <= spans["I"][0] < spans["I"][1] <= spans["III"][1]
        assert spans["II"][1] <= spans["III"][0]


def test_curves_cross_where_the_sure_one_changes():
    from timed import crossings

    assert crossings([1, 2, 4, 8], [1, 1, 1, 1], [2, 2, 2, 2]) == []
    assert crossings([1, 4, 16], [1, 1, 1], [2, 1.01, 0.5]) == [(pytest.approx(4), -1)]
    assert crossings([1, 4, 16], [4, 1, 1], [1, 4, 0.5]) == [(pytest.approx(2), 1), (pytest.approx(4 ** (5 / 3)), -1)]


def test_a_network_leaves_nothing_behind():
    from emulated import Shape, Unavailable, emulated

    def there():
        return sorted(os.listdir("/sys/class/net")), sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task")

    before = there()
    try:
        with emulated(Shape(uplink_delay_s=0.001)) as network:
            assert len(set(network.nodes)) == len(set(network.addresses)) == 4
            assert there() != before
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert there() == before


def test_a_machine_without_the_tools_says_so(monkeypatch):
    from emulated import Shape, Unavailable, emulated

    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match=r"^emulated network: ip, tc, nsenter is not installed$"), emulated(Shape()):
        pass
