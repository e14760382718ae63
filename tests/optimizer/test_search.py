"""The search against every candidate, simulated: its bounds hold and its answer is the best within the stated gap."""

from itertools import product
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from moeplan import planner
from moeplan.draft import draft
from moeplan.errors import InfeasibleError, SpecError
from moeplan.layout import Colocated, Disaggregated, Piper, Recompute
from moeplan.layouts import colocated, piper
from moeplan.optimizer.candidate import RECOMPUTE, Candidate, degrees, schedules_of
from moeplan.optimizer.disaggregate import balanced, search_disaggregated
from moeplan.optimizer.evaluate import evaluate, usable_bytes
from moeplan.optimizer.ledger import Ledger
from moeplan.optimizer.screen import Screen
from moeplan.optimizer.search import GAP, Search
from moeplan.spec.execution import Execution
from moeplan.spec.override import override
from moeplan.spec.shipped import load_calibration
from moeplan.spec.workload import Memory

FAMILIES = {"colocated": colocated, "piper": piper}
SHAPES = {
    "two nodes": {"gpus": 8, "per_node": 4, "num_layers": 4, "global_batch": 8},
    "ragged": {"gpus": 4, "per_node": 2, "num_layers": 5, "global_batch": 11, "seq_len": 2048, "dense_layers": 1},
    "short of memory": {"gpus": 4, "per_node": 2, "num_layers": 4, "global_batch": 8, "seq_len": 512},
}


def shaped(make_case, name, **more):
    fields = {"dense_width": 96, "shared_experts": 1} if name == "ragged" else {}
    memory = Memory(usable=1.7e-4) if name == "short of memory" else None
    return make_case(**(SHAPES[name] | {"memory": memory} | fields | more))


@pytest.fixture(scope="module", params=SHAPES)
def all_of(request, make_case, machine_of):
    """(search that has evaluated all, [(candidate, bound_s, plan, peak bytes, fits)])."""
    case = shaped(make_case, request.param)
    search = Search(case, machine_of(case))
    rows = []
    for layout in colocated.layouts(case):
        for rule, schedule in product(RECOMPUTE, schedules_of(layout)):
            candidate = Candidate(layout, schedule, rule)
            bound_s = search.bounded(candidate)
            plan = search.evaluated(candidate)
            peak = max(plan.predictions.peak_hbm_bytes)
            rows.append((candidate, bound_s, plan, peak, peak <= usable_bytes(case)))
    return search, rows


def test_bounds_never_exceed_what_they_bound(all_of):
    search, rows = all_of
    screen = Screen(search.case, search.machine)
    assert len(rows) > 50
    for candidate, bound_s, plan, peak, _ in rows:
        layout, rule = candidate.layout, candidate.recompute
        assert screen.step_s(layout, rule) <= bound_s * (1 + 1e-6), candidate
        assert bound_s <= plan.predictions.step_s * (1 + 1e-5), candidate
        assert screen.least_bytes(layout, rule, candidate.schedule) <= peak, candidate
        assert screen.static_bytes(layout) <= max(plan.predictions.static_hbm_bytes), candidate


@pytest.mark.parametrize(
    "execution",
    [
        Execution(),
        Execution(rows="fp8"),
        Execution(exchange="two_level"),
        Execution(dispatcher="deepep"),
        Execution(dispatcher="all_gather"),
        Execution(hidden=("expert",)),
        Execution(capacity=0.5),
    ],
    ids=["as shipped", "fp8", "two-level", "DeepEP", "all-gather", "hidden", "dropped"],
)
def test_no_way_of_rows_to_experts_is_faster_than_the_bound(execution, make_case, machine_of):
    """Little is computed, and 32 nodes of two GPUs exchange much."""
    case = make_case(64, per_node=2, seq_len=512, global_batch=64, hidden=4096, experts=64, expert_width=16, top_k=8)
    case = structs.replace(case, execution=execution)
    search, layout = Search(case, machine_of(case)), Colocated(dp=64, ep=64)
    for rule in (Recompute(), Recompute(ffn="full")):
        candidate = Candidate(layout, schedules_of(layout)[0], rule)
        passed_s, screened_s = search.bounded(candidate), Screen(case, search.machine).step_s(layout, rule)
        assert screened_s <= passed_s <= search.evaluated(candidate).predictions.step_s * (1 + 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_of_a_family_is_the_best_of_all_its_candidates(all_of, machine_of, family):
    search, rows = all_of
    allowed = {degrees(layout) for layout in FAMILIES[family].layouts(search.case)}
    fitting = [row for row in rows if row[4] and degrees(row[0].layout) in allowed]
    best_s = min(plan.predictions.step_s for _, _, plan, _, _ in fitting)
    found = Search(search.case, machine_of(search.case)).meshes(family, FAMILIES[family].layouts(search.case))
    assert found.best is not None
    assert best_s <= found.best.predictions.step_s <= best_s / (1 - GAP)
    assert max(found.best.predictions.peak_hbm_bytes) <= usable_bytes(search.case)
    assert found.simulated < len(fitting)


class Table(Search):
    """A search whose candidates cost what a table says: {micro-batch: (bound, step)}."""

    def __init__(self, case, machine, table):
        super().__init__(case, machine)
        self.table, self.plan = table, draft(case, Colocated(dp=case.cluster.node.gpus), schedule="1f1b")

    def drafted(self, candidate):
        return self.plan, ()

    def bounded(self, candidate):
        return self.table[candidate.layout.micro_batch][0]

    def evaluated(self, candidate):
        step_s = self.table[candidate.layout.micro_batch][1]
        return structs.replace(self.plan, predictions=structs.replace(self.plan.predictions, step_s=step_s))


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0.5, 1), st.floats(0.5, 1), st.floats(0.5, 1)).map(sorted), min_size=1))
def test_the_best_of_any_table_is_found_within_the_gap(make_case, costs):
    """A first bound below a better one below the step: what is left aside is at most the stated gap faster."""
    table = {number: tuple(cost[1:]) for number, cost in enumerate(costs, start=1)}
    entries = [
        (cost[0], Candidate(Colocated(micro_batch=number), "1f1b", RECOMPUTE[0]))
        for number, cost in enumerate(costs, start=1)
    ]
    search = Table(make_case(1), None, table)
    with mock.patch.object(search.room, "peak_bytes", return_value=0.0):
        found = search.best_first("colocated", entries, Ledger(search.case.model))
    best_s = min(step_s for _, step_s in table.values())
    assert best_s <= found.best.predictions.step_s <= best_s / (1 - GAP)
    beyond = [step_s for bound_s, step_s in table.values() if bound_s < found.best.predictions.step_s * (1 - GAP)]
    assert found.simulated >= len(beyond)


def test_some_of_the_candidates_do_not_fit_where_memory_is_short(make_case, machine_of):
    case = shaped(make_case, "short of memory")
    found = Search(case, machine_of(case)).meshes("colocated", colocated.layouts(case))
    assert any("exceed the usable HBM" in pruned.reason for pruned in found.pruned)


def test_what_two_families_hold_is_simulated_once(make_case, machine_of):
    case = shaped(make_case, "two nodes")
    search = Search(case, machine_of(case))
    with mock.patch("moeplan.optimizer.search.evaluate", wraps=evaluate) as simulated:
        first = [search.meshes(family, FAMILIES[family].layouts(case)) for family in ("colocated", "piper")]
        count = simulated.call_count
        again = search.meshes("piper", piper.layouts(case))
    assert count == len(search.plans) <= sum(found.simulated for found in first)
    assert simulated.call_count == count
    assert again == first[1]


@pytest.mark.parametrize("fixed", [{"pp": 2}, {"tp": 2, "ep": 4}, {"micro_batch": 4}, {"pp": 4, "vpp": 1, "ep": 2}])
def test_fixed_degrees_are_kept(make_case, fixed):
    case = shaped(make_case, "two nodes")
    best = ranked(case, "colocated", fixed=fixed).best
    assert {name: getattr(best.layout, name) for name in fixed} == fixed


@pytest.mark.parametrize(
    "fixed", [{}, {"pairs": 2}, {"dp": 2, "deduplicate": False}, {"attention_gpus": 3}, {"micro_batch": 3}]
)
def test_no_disaggregated_plan_is_faster_than_the_balanced_split(make_case, machine_of, fixed):
    """The continuous split of GPUs, memory ignored, with the efficiencies and the recompute rule of the plan."""
    case = make_case(6, per_node=3, num_layers=4, global_batch=12, seq_len=512)
    search = Search(case, machine_of(case))
    found = search_disaggregated(search, fixed)
    assert found.best is not None
    assert {name: getattr(found.best.layout, name) for name in fixed} == fixed
    assert search.plans
    for plan in (found.best, *search.plans.values()):
        assert isinstance(plan.layout, Disaggregated)
        assert {name: getattr(plan.layout, name) for name in fixed} == fixed
        split = balanced(case, search.machine, plan.layout, plan.recompute)
        assert split.seconds <= plan.predictions.step_s
        assert split.attention_gpus + split.ffn_gpus <= 6 * (1 + 1e-6)
        assert plan.predictions.step_s >= found.best.predictions.step_s


@pytest.mark.parametrize("memory", [0.9, 0.2])
@pytest.mark.parametrize("gpus", [8, 16])
def test_a_family_is_never_slower_than_one_that_it_holds(gpus, memory, make_case):
    """A mesh of one copy is a Piper mesh, and every Piper mesh is one of the baseline."""
    case = override(make_case(gpus, global_batch=64, num_layers=4), [f"memory.usable={memory}"])
    found = planner.optimize(case, load_calibration("h800"), families=["piper", "colocated"]).found
    wide, narrow = (next(one for one in found if one.family == name) for name in ("colocated", "piper"))
    alone = narrow.uncopied or narrow.best
    assert wide.best.predictions.step_s <= narrow.best.predictions.step_s <= alone.predictions.step_s


def ranked(case, family="piper", **more):
    return planner.optimize(case, load_calibration("h800"), families=[family], **more)


def test_a_baseline_stands_in_every_ranking_but_wins_only_if_wanted(make_case):
    ranking = ranked(shaped(make_case, "two nodes"))
    assert {found.family for found in ranking.found} == {"colocated", "piper"}
    steps = [found.best.predictions.step_s for found in ranking.found]
    assert steps == sorted(steps)
    assert isinstance(planner.winner(ranking).layout, Piper)


def test_pipers_dp_are_copies_and_a_baseline_that_was_not_asked_for_is_free(make_case):
    """dp = 1 is the paper's own mesh, PP x EP = GPUs; the colocated layout beside it may take any dp."""
    ranking = ranked(shaped(make_case, "two nodes"), fixed={"dp": 1})
    best = {found.family: found.best.layout for found in ranking.found}
    assert best["piper"].dp == 1
    assert best["piper"].pp * best["piper"].ep == 8
    assert best["colocated"].dp > 1


def test_where_nothing_fits_the_miss_is_told_in_gib(make_case):
    case = shaped(make_case, "two nodes", memory=Memory(usable=1e-6))
    ranking = ranked(case)
    assert ranking.best is None
    with pytest.raises(
        InfeasibleError, match=r"no layout for .* GiB of usable HBM per GPU; piper: nearest is .* GiB short"
    ):
        planner.winner(ranking)


def test_the_nearest_miss_is_short_by_what_it_holds_too_much(make_case):
    """As much memory as the least of all candidates needs, less one byte: that candidate is one byte short."""
    case = shaped(make_case, "short of memory", memory=Memory())
    search = Search(case, planner.machine_of(case, load_calibration("h800")))
    least = min(
        search.room.peak_bytes(Candidate(layout, schedules_of(layout)[0], rule))
        for layout in colocated.layouts(case)
        for rule in RECOMPUTE
    )
    short = Memory(usable=(least - 1) / case.cluster.gpu.hbm_bytes)
    found = ranked(structs.replace(case, memory=short)).found[0]
    assert found.best is None
    assert found.mend.miss.short_bytes == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"families": ["dense"]}, "family 'dense' is not known; there are colocated, piper, disaggregated"),
        ({"fixed": {"sp": 2}}, r"layout\.sp: layouts have attention_gpus, .*, vpp$"),
    ],
)
def test_unknown_families_and_degrees_are_refused(make_case, options, message):
    case = shaped(make_case, "two nodes")
    with pytest.raises(SpecError, match=message):
        planner.optimize(case, load_calibration("h800"), **options)


def test_the_plan_says_how_it_was_found(make_case):
    ranking = ranked(shaped(make_case, "two nodes"), "colocated", fixed={"micro_batch": 1})
    plan = planner.winner(ranking)
    assert plan.layout.micro_batch == 1
    assert plan.solver.gap == GAP
    assert plan.solver.evaluated >= 1
    assert plan.solver.pruned > 0
    assert plan.assumptions
