"""V-Half and V-Min written out pass by pass: what a full pipeline waits in each micro-batch, and what it keeps."""

import numpy as np
import pytest

from moeplan.analytic.bubble import idle
from moeplan.analytic.form import CLASSES, form
from moeplan.analytic.step import step
from moeplan.cost.pricing import Pricing
from moeplan.draft import dealt
from moeplan.layout import Colocated
from moeplan.layouts import stages
from moeplan.resources.memory.closed import alive

SLOPES = {"v-min": (1, 1, 1, 1), "v-half": (2, 1, 2, 1)}
"""Units from one position to the next of a micro-batch's four ways: down the V, up, and both ways back."""
CASES = [("v-min", 4), ("v-min", 5), ("v-min", 8), ("v-half", 5), ("v-half", 7)]
"""Numbers of positions at which each pass may follow the one before it at once."""


def starts(schedule, positions, position):
    """When each pass of micro-batch 0 starts where all take one unit; a turn takes one unit, V-Half's last one two."""
    slopes, others = SLOPES[schedule], positions - 1
    pauses = (1, 1, 2 if schedule == "v-half" else 1)
    begin = np.cumsum([0, *(slope * others + pause for slope, pause in zip(slopes, pauses, strict=False))])
    places = (position, others - position, position, others - position)
    slots = (int(first) + slope * place for first, slope, place in zip(begin, slopes, places, strict=True))
    return dict(zip(("F0", "F1", "B1", "B0"), slots, strict=True))


def order(schedule, positions, position, microbatches):
    """Passes of one position in the order of their slots, every 6 units a micro-batch; W takes the slots left over."""
    start = starts(schedule, positions, position)
    taken = {slot + 6 * m: (name, m) for name, slot in start.items() for m in range(microbatches)}
    free = {slot % 6 for slot in range(6)} - {slot % 6 for slot in start.values()}
    assert len(free) == 2
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


def longest_path(schedule, positions, microbatches, seconds):
    """When the last pass ends."""
    ends, clock = {}, [0.0] * positions
    waiting = [order(schedule, positions, position, microbatches) for position in range(positions)]
    while any(waiting):
        for position, rest in enumerate(waiting):
            while rest and ((need := needs(*rest[0], position, positions)) is None or need in ends):
                name, m = rest.pop(0)
                clock[position] = max(clock[position], ends.get(need, 0.0)) + seconds[name[0]]
                ends[name, m, position] = clock[position]
    return max(clock)


@pytest.mark.parametrize(("schedule", "positions"), CASES)
@pytest.mark.parametrize("passes", [(1, 1, 1), (1, 1.3, 0.7), (1, 1.6, 0.5), (1.3, 1, 0.7), (1, 0.6, 1.5)])
def test_forwards_and_gradients_wait_for_each_other_in_every_micro_batch(schedule, positions, passes):
    few, many = (longest_path(schedule, positions, m, dict(zip("FBW", passes, strict=True))) for m in (40, 80))
    f, b, w = (2 * seconds for seconds in passes)  # of both halves
    longer, weights = idle(schedule, positions, 2).turns
    assert (many - few) / 40 == pytest.approx(max(f + b + w, longer * max(f, b) + weights * w))


def test_a_bubble_of_equal_passes_is_that_of_the_order():
    found = longest_path("v-min", 8, 32, {"F": 1, "B": 1, "W": 1})
    assert (found - 6 * 32) / 6 == pytest.approx(sum(idle("v-min", 8, 2).bubble) / 3, rel=0.05)


@pytest.mark.parametrize(("schedule", "positions"), CASES)
def test_the_closed_form_of_memory_holds_what_the_order_keeps(schedule, positions):
    """Half stages until their input gradient; weight gradients wait for a little longer."""
    most = 0
    for position in range(positions):
        kept = np.cumsum([{"F": 1, "B": -1, "W": 0}[name[0]] for name, _ in order(schedule, positions, position, 40)])
        most = max(most, int(kept.max()))
    told = max(sum(alive(schedule, position, positions, 40).values()) for position in range(positions))
    assert most <= told <= most + 2


def test_the_closed_form_of_the_step_waits_too(make_case, machine_of):
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
        more = step(told).bubble - step(told._replace(turns=np.zeros(2))).bubble
        longest = max(forward, backward - products)
        assert more == pytest.approx(float(found.microbatches) * max(0, 3 * longest - forward - backward))
