"""Tiered all-to-alls bring what all_to_all_single brings, bit for bit, and so do their gradients."""

import time
import weakref
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from live import LiveBytes

from moeplan.resources.memory import spare
from moeplan.tiers import Tiers
from moeplan_exec.all_to_all import ALGORITHMS, all_to_all, begin, begin_parcel
from moeplan_exec.exchange import exchange
from moeplan_exec.lanes import make_lanes
from moeplan_exec.launch import fork
from moeplan_exec.parcel import Parcel
from moeplan_exec.start import join

TIERED = ("halo", "two_level", "halo_chunked")
EVEN_16 = tuple(tuple(range(4 * a, 4 * a + 4)) for a in range(4))
CASES = {
    "one node": Tiers(nodes=((0, 1, 2, 3),)),
    "one rank per node": Tiers(nodes=((0,), (1,), (2,), (3,)), groups=((0, 3), (1, 2))),
    "four nodes of two": Tiers(nodes=((0, 1), (2, 3), (4, 5), (6, 7))),
    "two nodes": Tiers(nodes=((0, 1), (2, 3))),
    "ranks of a node that are not neighbours": Tiers(
        nodes=((0, 4), (5, 1), (2, 6), (7, 3)), groups=((0, 4, 2, 6), (1, 5, 3, 7))
    ),
    "nodes of different size": Tiers(nodes=((0, 2, 1), (3, 4), (5,), (7, 6)), groups=((0, 1, 2, 5), (3, 4, 6, 7))),
    "two racks of two nodes": Tiers(nodes=EVEN_16, groups=(tuple(range(8)), tuple(range(8, 16)))),
    "groups of different size": Tiers(
        nodes=((15, 0, 3, 7, 9), (1,), (2, 14, 4), (5, 6, 8), (10, 12, 11, 13)),
        groups=((0, 3, 7, 9, 15), (1, 2, 4, 14, 5, 6, 8), (10, 11, 12, 13)),
    ),
}
TABLES = [
    (torch.float64, (3,)),
    (torch.float32, ()),
    (torch.bfloat16, (2, 5)),
    (torch.float8_e4m3fn, (4,)),
    (torch.int64, (1,)),
    (torch.bool, (3,)),
]


def on_ranks(tiers, work):
    """`work(lanes)` on all ranks of `tiers`; results by rank."""

    def body(start, report):
        torch.set_num_threads(1)
        join(start, "cpu", timeout_s=60, token="")
        return work(make_lanes(tiers, start.rank, window=2))

    return fork(sum(map(len, tiers.nodes)), body)


def counts_of(size, seed):
    """[source][target], a third of them zero, and one rank that neither sends nor receives."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 7, (size, size), generator=generator)
    counts[torch.rand(size, size, generator=generator) < 0.3] = 0
    counts[seed % size], counts[:, seed % size] = 0, 0
    return counts


def rows_of(rows, dtype, shape, seed):
    """Random bits: NaN of all kinds among them."""
    bits = torch.randint(0, 2 if dtype == torch.bool else 256, (rows, *shape, dtype.itemsize), dtype=torch.uint8)
    bits = bits.add(seed).remainder(2) if dtype == torch.bool else bits
    return bits.view(dtype).reshape(rows, *shape)


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def by_single(rows, sent, received):
    """The same by `all_to_all_single` over the world."""
    raw = rows.contiguous().view(torch.uint8) if rows.dim() > 1 else rows.reshape(-1, 1).view(torch.uint8)
    arriving = raw.new_empty(sum(received), *raw.shape[1:])
    dist.all_to_all_single(arriving, raw, received, sent)
    return arriving.view(rows.dtype).reshape(len(arriving), *rows.shape[1:])


@pytest.mark.parametrize("tiers", CASES.values(), ids=CASES)
def test_random_uneven_counts_and_all_types_arrive_bit_for_bit(tiers):
    def work(lanes):
        size, wrong = dist.get_world_size(), []
        torch.manual_seed(lanes.rank)
        for seed, (dtype, shape) in enumerate(TABLES):
            counts = counts_of(size, seed)
            sent, received = counts[lanes.rank].tolist(), counts[:, lanes.rank].tolist()
            rows = rows_of(sum(sent), dtype, shape, seed)
            right = by_single(rows, sent, received)
            for algorithm in TIERED:
                found = all_to_all(rows, sent, received, lanes, algorithm=algorithm)
                if found.shape != right.shape or found.dtype != dtype or bits(found) != bits(right):
                    wrong.append((algorithm, dtype, found.shape, right.shape))
        return wrong

    assert on_ranks(tiers, work) == [[]] * sum(map(len, tiers.nodes))


@pytest.mark.parametrize("name", ["two nodes", "nodes of different size", "two racks of two nodes"])
def test_gradients_go_back_the_way_that_rows_came(name):
    def work(lanes):
        counts = counts_of(dist.get_world_size(), 3)
        sent, received = counts[lanes.rank].tolist(), counts[:, lanes.rank].tolist()
        torch.manual_seed(lanes.rank)
        weight = torch.randn(sum(received), 4, dtype=torch.float64)
        right = by_single(weight, received, sent)
        found = []
        for algorithm in (*TIERED, "flat"):
            rows = torch.randn(sum(sent), 4, dtype=torch.float64, requires_grad=True)
            (all_to_all(2 * rows, sent, received, lanes, algorithm=algorithm) * weight).sum().backward()
            found.append(bits(rows.grad) == bits(2 * right) and rows.grad.shape == rows.shape)
        return found

    assert on_ranks(CASES[name], work) == [[True] * 4] * sum(map(len, CASES[name].nodes))


def test_nobody_has_rows():
    def work(lanes):
        none = [0] * 8
        return [all_to_all(torch.zeros(0, 5), none, none, lanes, algorithm=a).shape for a in TIERED]

    assert on_ranks(CASES["nodes of different size"], work) == [[(0, 5)] * 3] * 8


def test_exchanges_in_threads_of_their_own_keep_their_order():
    def work(lanes):
        counts = counts_of(8, 1)
        sent, received = counts[lanes.rank].tolist(), counts[:, lanes.rank].tolist()
        tables = [torch.full((sum(sent), 2), float(100 * i + lanes.rank)) for i in range(6)]
        under_way = [begin(rows, sent, received, lanes, algorithm=TIERED[i % 3]) for i, rows in enumerate(tables)]
        right = [by_single(rows, sent, received) for rows in tables]
        return [torch.equal(u.wait(), r) for u, r in zip(reversed(under_way), reversed(right), strict=True)]

    assert on_ranks(CASES["ranks of a node that are not neighbours"], work) == [[True] * 6] * 8


def test_rows_are_freed_once_they_have_left():
    def work(lanes):
        freed = []
        for _ in range(3):
            rows = torch.zeros(8, 2)
            seen, under_way = weakref.ref(rows.untyped_storage()), begin(rows, [2] * 4, [2] * 4, lanes)
            del rows
            under_way.wait()
            freed.append(seen() is None)
        return freed

    assert on_ranks(CASES["two nodes"], work) == [[True] * 3] * 4


@pytest.mark.parametrize("name", ["two nodes", "four nodes of two"])
@pytest.mark.parametrize("algorithm", TIERED)
def test_an_exchange_by_nodes_holds_what_predictions_say(name, algorithm):
    """Beside rows as sent and as received; all rounds in one window, so that most is packed at once.

    The least of twelve: a thread of the transport may hold what it has sent a moment longer.
    """

    def work(lanes):
        size = dist.get_world_size()
        counts, rows = [32] * size, torch.zeros(32 * size, 1024, dtype=torch.uint8)
        peaks = []
        for _ in range(12):
            with LiveBytes() as live:
                all_to_all(rows, counts, counts, replace(lanes, window=4), algorithm=algorithm)
            peaks.append(live.peak / rows.nbytes)
        return min(peaks)

    held = 2 + spare(algorithm, len(CASES[name].nodes))
    assert on_ranks(CASES[name], work) == pytest.approx([held] * sum(map(len, CASES[name].nodes)), rel=0.01)


@pytest.mark.parametrize("known", [True, False], ids=["counts known", "counts asked for"])
@pytest.mark.parametrize("name", ["nodes of different size", "one node"])
def test_tables_of_a_parcel_go_in_one_message_and_arrive_as_by_exchange(name, known):
    def work(lanes):
        size, same = dist.get_world_size(), []
        columns = ((torch.int64, 3), (torch.float32, 5), (torch.bfloat16, 1))
        counts = torch.stack([counts_of(size, 1), counts_of(size, 1), counts_of(size, 2)])
        sent, received = counts[:, lanes.rank].tolist(), counts[:, :, lanes.rank].tolist()
        torch.manual_seed(lanes.rank)
        tables = tuple(rows_of(sum(n), t, (w,), 0) for n, (t, w) in zip(sent, columns, strict=True))
        leaving = Parcel(tables, tuple(map(tuple, sent)))
        right = exchange(leaving, columns, dist.group.WORLD, received).wait()
        for algorithm in ALGORITHMS:
            found = begin_parcel(leaving, columns, lanes, received if known else None, algorithm=algorithm).wait()
            same += [bits(a) == bits(b) and a.shape == b.shape for a, b in zip(found.tables, right.tables, strict=True)]
            same.append(found.counts == right.counts)
        return same

    assert on_ranks(CASES[name], work) == [[True] * 16] * sum(map(len, CASES[name].nodes))


def test_an_exchange_in_the_open_waits_for_those_in_threads():
    def work(lanes):
        ones, rows = [1] * 4, torch.arange(4) + 10 * lanes.rank
        slow = begin(rows, ones, ones, lanes, log=lambda *_: time.sleep(0.05))
        return all_to_all(-rows, ones, ones, lanes).tolist(), slow.wait().tolist()

    right = [[r, 10 + r, 20 + r, 30 + r] for r in range(4)]
    assert on_ranks(CASES["two nodes"], work) == [([-x for x in row], row) for row in right]


def test_what_fails_in_a_thread_is_raised_where_it_is_waited_for():
    def work(lanes):
        with pytest.raises(RuntimeError):
            begin(torch.zeros(3, 2), [1], [1], lanes).wait()
        return True

    assert on_ranks(Tiers(nodes=((0,),)), work) == [True]


def test_ranks_outside_of_the_tiers_have_no_part_and_groups_work_side_by_side():
    groups = (Tiers(nodes=((5, 1), (2,))), Tiers(nodes=((0,), (4, 3))))

    def body(start, report):
        torch.set_num_threads(1)
        join(start, "cpu", timeout_s=60, token="")
        mine = [lanes for lanes in [make_lanes(tiers, start.rank) for tiers in groups] if lanes]
        rows = torch.full((3,), start.rank)
        return [all_to_all(rows, [1] * 3, [1] * 3, lanes).tolist() for lanes in mine]

    assert fork(7, body) == [[[0, 3, 4]], [[1, 2, 5]], [[1, 2, 5]], [[0, 3, 4]], [[0, 3, 4]], [[1, 2, 5]], []]


def test_phase_one_begins_with_two_and_three_follows_two():
    def work(lanes):
        spans = {}
        ones = [1] * 4
        all_to_all(torch.ones(4, 2), ones, ones, lanes, log=lambda name, start, end: spans.update({name: (start, end)}))
        return spans

    for spans in on_ranks(CASES["two nodes"], work):
        assert spans.keys() == {"I", "II", "III"}
        assert spans["I"][0] == spans["II"][0] < spans["II"][1] == spans["III"][0] <= spans["III"][1]
