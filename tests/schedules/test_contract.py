"""Every schedule: complete, legal, readable; makespans and live activations against closed forms."""

import pytest

from moeplan.errors import ScheduleError, SpecError
from moeplan.schedule import Shape, check, from_text, to_text
from moeplan.schedules import SCHEDULES, make

SHAPES = [
    (name, positions, positions * chunks + extra, microbatches)
    for name in SCHEDULES
    for positions in (1, 2, 3, 4, 8)
    for chunks, extra in ((1, 0), (2, 0), (2, 1), (3, -1))
    for microbatches in (1, 2, 3, 7, 16)
    if positions * chunks + extra >= positions and (name != "1f1b" or (chunks, extra) == (1, 0))
]


def homes(shape):
    return [(s % shape.positions,) for s in range(shape.stages)]


def live(row):
    """Most forwards without their backward at any time, in actions."""
    alive = most = 0
    for step in row:
        alive += sum({"F": 1, "B": -1}[action.kind] for action in step)
        most = max(most, alive)
    return most


@pytest.mark.parametrize(("name", "positions", "stages", "microbatches"), SHAPES)
def test_every_order_is_legal_and_read_back_equal(name, positions, stages, microbatches):
    shape = Shape(positions, stages, microbatches)
    steps = make(name, shape)
    check(steps, homes(shape), microbatches)
    assert tuple(from_text(to_text(row), where=name) for row in steps) == steps
    assert sum(map(len, steps)) == 2 * stages * microbatches
    assert make(name, shape) == steps


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("fault", ["missing", "twice", "moved", "reversed"])
def test_a_spoilt_order_is_refused(name, fault):
    shape = Shape(3, 3, 4)
    steps = [list(row) for row in make(name, shape)]
    if fault == "missing":
        steps[1].remove(steps[1][-1])
    elif fault == "twice":
        steps[1].append(steps[1][0])
    elif fault == "moved":
        steps[2].append(steps[1].pop())
    else:
        steps[1].reverse()
    message = {
        "missing": "stage 1, micro-batch 3 has F;",
        "twice": "position 1, step 8: 1F0 stands twice",
        "moved": "position 2, step 8: 1B3 belongs to position 1",
        "reversed": "deadlock: .*position 1, step 0: 1B3 waits for 1F3",
    }
    with pytest.raises(ScheduleError, match=message[fault]):
        check(tuple(map(tuple, steps)), homes(shape), 4)


def test_an_unknown_name_lists_the_schedules_there_are():
    with pytest.raises(SpecError, match="gpipe, 1f1b, interleaved, af-pipe"):
        make("zero", Shape(1, 1, 1))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved"])
@pytest.mark.parametrize("positions", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_makespan_of_one_chunk(simulated, name, positions, rounds):
    """(m + p - 1) (F + B): Narayanan et al., arXiv 2104.04473, section 2.2.1."""
    microbatches = positions * rounds + (name != "interleaved")
    steps = make(name, Shape(positions, positions, microbatches))
    *_, end = simulated(steps, positions, microbatches, forward=3, backward=5)
    assert max(end) == (microbatches + positions - 1) * (3 + 5)


@pytest.mark.parametrize("positions", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_makespan_of_interleaved_chunks(simulated, positions, chunks, rounds):
    """(m + (p - 1) / v) (F + B) with F and B of all v chunks: arXiv 2104.04473, section 2.2.2."""
    microbatches, stages = positions * rounds, positions * chunks
    steps = make("interleaved", Shape(positions, stages, microbatches))
    *_, end = simulated(steps, stages, microbatches, forward=3, backward=5)
    assert max(end) == (microbatches * chunks + positions - 1) * (3 + 5)


@pytest.mark.parametrize("positions", [1, 2, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 3, 8, 20])
def test_live_microbatches(positions, microbatches):
    """1F1B keeps min(m, p - i) micro-batches alive, GPipe all of them."""
    shape = Shape(positions, positions, microbatches)
    assert [live(row) for row in make("1f1b", shape)] == [min(microbatches, positions - i) for i in range(positions)]
    assert [live(row) for row in make("gpipe", shape)] == [microbatches] * positions


@pytest.mark.parametrize("positions", [2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2, 4])
@pytest.mark.parametrize("rounds", [1, 3])
def test_interleaved_is_the_order_of_pytorch(positions, chunks, rounds):
    """Action for action the order of torch.distributed.pipelining, idle slots left out."""
    reason = "the order of PyTorch needs the extra `run`: pip install moeplan[run]"
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason=reason)
    theirs = object.__new__(schedules.ScheduleInterleaved1F1B)
    microbatches = positions * rounds
    theirs.n_local_stages, theirs.pp_group_size = chunks, positions
    theirs.microbatches_per_round, theirs._n_microbatches = positions, microbatches
    for rank, row in enumerate(make("interleaved", Shape(positions, positions * chunks, microbatches))):
        order = [action for action in theirs._calculate_single_rank_operations(rank) if action is not None]
        assert to_text(row) == " ".join(map(str, order))
