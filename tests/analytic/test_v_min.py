"""V-Min written out pass by pass: what a full pipeline waits in each micro-batch."""

import numpy as np
import pytest

from moeplan.analytic.bubble import bubble
from moeplan.analytic.form import CLASSES, form
from moeplan.analytic.step import step
from moeplan.cost.pricing import Pricing
from moeplan.draft import dealt
from moeplan.layout import Colocated
from moeplan.layouts import stages

PASSES = "F0", "F1", "B1", "B0"
"""Of a micro-batch's two chunks on each position: down the V, up, and both ways back."""


def slots(positions, position):
    """When each pass of micro-batch 0 starts where all take one unit: each follows its neighbour's at once."""
    down, up = position, 2 * positions - 1 - position
    return dict(zip(PASSES, (down, up, 2 * positions + down, 2 * positions + up), strict=True))


def order(positions, position, microbatches):
    """Passes of one position in the order of their slots, every 6 units a micro-batch; W takes the slots left over."""
    start = slots(positions, position)
    taken = {start[name] + 6 * m: (name, m) for name in PASSES for m in range(microbatches)}
    free = {slot % 6 for slot in range(6)} - {slot % 6 for slot in start.values()}
    for slot, (name, m) in sorted(taken.items()):
        if name in ("B0", "B1"):
            later = slot + 1
            while later in taken or later % 6 not in free:
                later += 1
            taken[later] = (name.replace("B", "W"), m)
    return [taken[slot] for slot in sorted(taken)]


def needs(name, m, position, positions):
    """The pass that another starts after, on whichever position; none for the first and for W."""
    before = {
        "F0": ("F0", position - 1) if position else None,
        "F1": ("F1", position + 1) if position < positions - 1 else ("F0", position),
        "B1": ("B1", position - 1) if position else ("F1", position),
        "B0": ("B0", position + 1) if position < positions - 1 else ("B1", position),
    }.get(name)
    return before and (before[0], m, before[1])


def longest_path(positions, microbatches, seconds):
    """When the last pass ends."""
    ends, clock = {}, [0.0] * positions
    waiting = [order(positions, position, microbatches) for position in range(positions)]
    while any(waiting):
        for position, rest in enumerate(waiting):
            while rest and ((need := needs(*rest[0], position, positions)) is None or need in ends):
                name, m = rest.pop(0)
                clock[position] = max(clock[position], ends.get(need, 0.0)) + seconds[name[0]]
                ends[name, m, position] = clock[position]
    return max(clock)


@pytest.mark.parametrize("positions", [4, 5, 8])
@pytest.mark.parametrize(("forward", "inputs", "weights"), [(1, 1, 1), (1, 1.3, 0.7), (1, 1.6, 0.5), (1, 0.6, 1.5)])
def test_forward_and_input_gradient_take_turns_in_lockstep(positions, forward, inputs, weights):
    seconds = {"F": forward, "B": inputs, "W": weights}
    few, many = (longest_path(positions, microbatches, seconds) for microbatches in (40, 80))
    assert (many - few) / 40 == pytest.approx(max(6 * max(forward, inputs), 2 * sum(seconds.values())))


def test_a_bubble_of_equal_passes_is_that_of_the_order():
    found = longest_path(8, 32, {"F": 1, "B": 1, "W": 1})
    assert (found - 6 * 32) / 6 == pytest.approx(bubble("v-min", 8, 2), rel=0.05)


def test_the_closed_form_waits_for_it_in_every_micro_batch(make_case, machine_of):
    """Nothing where the weights' gradients, which nobody waits for, are what is long."""
    case = make_case(16, global_batch=256, seq_len=4096, num_layers=8, hidden=2048, experts=16)
    layout = Colocated(pp=4, vpp=2, dp=4, ep=4)
    graph = stages(case, layout)
    found = form(Pricing(case, graph, machine_of(case)), dealt(case, layout, graph), "v-min")
    rows, positions = 2, 4
    for forward, backward, products in ((1.0, 2.0, 0.6), (1.0, 2.0, 1.0), (1.0, 1.5, 0.6)):
        pieces = np.zeros((rows, len(CLASSES)))
        pieces[0, [CLASSES.index("gemm"), CLASSES.index("expert")]] = products, forward - products
        pieces[1, CLASSES.index("stream")] = backward
        counts = {"forward": np.tile([1.0, 0.0], (positions, 1)), "backward": np.tile([0.0, 1.0], (positions, 1))}
        told = found._replace(pieces=pieces, **counts)
        more = step(told).bubble - step(told._replace(lockstep=np.array(0.0))).bubble
        longest = max(forward, backward - products)
        assert more == pytest.approx(float(found.microbatches) * max(0, 3 * longest - forward - backward))
