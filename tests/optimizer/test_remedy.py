"""What is told to make a layout fit does make it fit, and nothing less of the same kind does."""

import re
from unittest import mock

import pytest
from msgspec import structs

from moeplan.draft import draft_with_steps
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.optimizer.candidate import RECOMPUTE, Candidate
from moeplan.optimizer.evaluate import footprint
from moeplan.optimizer.ledger import Ledger, Miss
from moeplan.optimizer.remedy import fits, grown, mend
from moeplan.spec.cluster import Switch, Switches, check_cluster
from moeplan.spec.workload import Memory

LAYOUTS = {
    "colocated": (Colocated(pp=2, dp=4, ep=2, micro_batch=4), "1f1b"),
    "piper": (Piper(pp=2, ep=4, micro_batch=4), "1f1b"),
    "disaggregated": (Disaggregated(pairs=2, attention_gpus=4, ffn_gpus=4, micro_batch=2), "af-pipe"),
}


def needed(case, candidate):
    plan, steps = draft_with_steps(case, candidate.layout, schedule=candidate.schedule, recompute=candidate.recompute)
    return max(footprint(plan, steps).peak)


@pytest.fixture(params=LAYOUTS)
def short(request, make_case):
    """(case, miss): a candidate on a machine that has nine tenths of what it needs."""
    layout, schedule = LAYOUTS[request.param]
    case = make_case(8, seq_len=2048, global_batch=64, num_layers=6)
    candidate = Candidate(layout, schedule, Recompute())
    usable = 0.9 * needed(case, candidate)
    case = structs.replace(case, memory=Memory(usable=usable / case.cluster.gpu.hbm_bytes))
    return case, Miss(candidate, needed(case, candidate) - usable, 0.0)


def bounded(candidate):
    """One second more for every rule further down the list, half of it for smaller micro-batches."""
    return 1.0 + RECOMPUTE.index(candidate.recompute) + 0.5 / candidate.layout.micro_batch


def test_each_change_makes_it_fit_and_no_smaller_one_does(short):
    case, miss = short
    assert not fits(case, miss.candidate)
    told = mend(case, miss, bounded).changes
    assert [change.split()[0] for change in told[:2]] == ["recompute", "micro-batch"]
    rule = Recompute(**dict(zip(("attention", "ffn"), told[0].split()[1].split("/"), strict=True)))
    for other in RECOMPUTE[: RECOMPUTE.index(rule) + 1]:
        assert fits(case, miss.candidate._replace(recompute=other)) == (other == rule)
    size = int(told[1].split()[1])
    for other in (4, 2, 1):
        if other <= miss.candidate.layout.micro_batch:
            layout = structs.replace(miss.candidate.layout, micro_batch=other)
            assert fits(case, miss.candidate._replace(layout=layout)) == (other <= size)


def test_more_gpus_are_told_with_the_layout_that_fits(short):
    case, miss = short
    gpus = next(change for change in mend(case, miss, bounded).changes if "GPUs" in change)
    times = int(re.match("([0-9]+) nodes of 8 GPUs", gpus)[1])
    cluster = structs.replace(case.cluster, nodes=times)
    larger = structs.replace(case, cluster=cluster)
    assert any(fits(larger, miss.candidate._replace(layout=layout)) for layout in grown(miss.candidate.layout, times))


def test_changes_that_would_take_longer_are_no_remedies(short):
    case, miss = short
    told = mend(case, miss, bounded, faster_than_s=2.0).changes
    assert not any(change.startswith("recompute") for change in told)
    assert any(change.startswith("micro-batch") for change in told)


def test_a_little_more_of_the_hbm_is_told_where_that_is_enough(make_case):
    candidate = Candidate(Colocated(pp=2, dp=4, ep=2), "1f1b", RECOMPUTE[-1])
    case = make_case(8, seq_len=2048, global_batch=64, num_layers=6)
    hbm = needed(case, candidate) / 0.93
    gpu = structs.replace(case.cluster.gpu, hbm_bytes=hbm)
    case = structs.replace(case, cluster=structs.replace(case.cluster, gpu=gpu))
    told = mend(case, Miss(candidate, 0.03 * hbm, 0.0), bounded).changes
    assert "memory.usable 0.93" in told or "memory.usable 0.931" in told
    assert fits(structs.replace(case, memory=Memory(usable=0.931)), candidate)
    assert not fits(structs.replace(case, memory=Memory(usable=0.929)), candidate)


def test_the_nearest_is_measured_before_it_is_taken(make_case):
    """A lower bound of what one is short by does not make it the nearest."""
    layouts = [Candidate(Colocated(dp=n), "1f1b", Recompute()) for n in (1, 2, 3)]
    truth = dict(zip(layouts, (9.0, 5.0, 7.0), strict=True))
    ledger = Ledger(make_case(1).model)
    for candidate, bound, bound_s in zip(layouts, (1.0, 4.0, 7.0), (1.0, 2.0, 3.0), strict=True):
        ledger.add("does not fit", candidate, bound, bound_s)

    def measured(miss):
        return miss._replace(short_bytes=truth[miss.candidate])

    assert ledger.nearest(measured).candidate == layouts[1]
    assert ledger.nearest(measured, faster_than_s=1.5).candidate == layouts[0]
    assert ledger.nearest(measured, faster_than_s=0.5) is None


def test_rows_between_two_sides_are_not_sent_again(make_case):
    case = make_case(8, seq_len=2048, global_batch=64, num_layers=6, memory=Memory(usable=1e-9))
    short = Candidate(Disaggregated(attention_gpus=4, ffn_gpus=4), "af-pipe", Recompute())
    with mock.patch("moeplan.optimizer.remedy.fits", return_value=False) as tried:
        mend(case, Miss(short, 1e12, 0.0), bounded)
    assert {call.args[1].recompute.ffn for call in tried.call_args_list} == {"none", "experts"}


@pytest.mark.parametrize(("leaves", "grows"), [(4, True), (1, False)])
def test_named_nodes_on_switches_grow_as_far_as_there_are(leaves, grows, make_case):
    """Twice two nodes are the first four of the machine; a larger one than the switches given is not made up."""
    case = make_case(4, seq_len=2048, global_batch=64, num_layers=6)
    below = [f"n[{2 * i}-{2 * i + 1}]" for i in range(leaves)]
    switches = [Switch(name=nodes, nodes=nodes, up="top", uplink_bytes_per_s=1e9) for nodes in below]
    cluster = structs.replace(
        case.cluster,
        node=structs.replace(case.cluster.node, gpus=2, nics=1),
        nodes=2,
        hosts=f"n[0-{2 * leaves - 1}]",
        network=Switches(switches=(*switches, Switch(name="top")), hop_latency_s=0.0),
    )
    case = structs.replace(case, cluster=check_cluster(cluster))
    short = Candidate(Piper(pp=2, ep=2), "1f1b", RECOMPUTE[-1])
    usable = 0.9 * needed(case, short)
    case = structs.replace(case, memory=Memory(usable=usable / case.cluster.gpu.hbm_bytes))
    told = mend(case, Miss(short, 1e6, 0.0), bounded).changes
    assert any(change.startswith("4 nodes of 2 GPUs") for change in told) is grows


def test_what_nothing_mends_is_told_without_a_change(make_case):
    case = make_case(8, memory=Memory(usable=1e-9))
    miss = Miss(Candidate(Colocated(dp=8), "1f1b", RECOMPUTE[-1]), 1e12, 0.0)
    assert mend(case, miss, bounded).changes == ()
