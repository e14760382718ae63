"""The integer program equals brute force and a second formulation; every row matters."""

import random
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from moeplan.errors import InfeasibleError, SolverError
from moeplan.optimizer import allocation
from moeplan.optimizer.allocation import model_text, rows, solve
from moeplan.optimizer.relaxation import relax, rounded
from moeplan.options import Budgets, NicOption, OptionTable, SideOption

GIB = 2**30
NIC = 50e9


def option(gpus, seconds, *, nics=64, gib=1.0, name=None):
    return SideOption(name or f"{gpus} none", gpus, nics=nics, recompute="none", seconds=seconds, hbm_bytes=gib * GIB)


BUDGETS = Budgets(gpus=8, nics=4, hbm_bytes=80 * GIB)
TABLE = OptionTable(
    attention=(option(2, 3.0, nics=2, gib=60), option(4, 1.5, nics=4, gib=30), option(4, 2.0, gib=15, name="4 full")),
    ffn=(option(2, 4.0, nics=2, gib=92.25), option(4, 2.0, nics=4, gib=46.5), option(6, 4 / 3, nics=6, gib=31)),
    nics=(NicOption(1, 3), NicOption(2, 2), NicOption(3, 3)),
    volume_bytes=3 * NIC,
    nic_bytes_per_s=NIC,
)
ROWS = [row.name for row in rows(TABLE, BUDGETS)]


def roofline(attention, ffn, volume, gpus, nics):
    """All splits of GPUs and NICs, with seconds C / (gpus P) and V / (nics B) and no limit of memory or reach."""
    sides = [tuple(option(n, work / n) for n in range(1, gpus)) for work in (attention, ffn)]
    pairs = tuple(NicOption(a, f) for a in range(1, nics) for f in range(1, nics - a + 1))
    return OptionTable(*sides, pairs, volume, NIC), Budgets(gpus, nics, hbm_bytes=80 * GIB)


def drawn(seed):
    """A small table with every kind of limit, many ties, and sometimes no network or no solution."""
    draw = random.Random(seed)
    nics = draw.randint(2, 8)

    def side():
        count = draw.randint(2, 7)
        return tuple(
            option(draw.randint(1, 8), draw.choice([1.0, 2.0, 3.0, 4.5, draw.uniform(1, 5)]), nics=draw.randint(1, 8),
                   gib=draw.choice([40.0, 60.0, 70.0, 79.9, 80.0, 80.0 + 1 / GIB, 95.0]), name=f"option {i}")
            for i in range(count)
        )  # fmt: skip

    pairs = tuple(NicOption(draw.randint(1, 5), draw.randint(1, 5)) for _ in range(draw.choice([0, 2, 4, 8])))
    table = OptionTable(side(), side(), pairs, draw.choice([0.0, 2.0, 5.0, 12.0]) * NIC, NIC)
    return table, Budgets(draw.randint(6, 14), nics, hbm_bytes=80 * GIB)


def brute_force(table, budgets):
    """(seconds, attention, ffn, nics) of the best choice, or None where no choice fits."""
    pairs = table.nics if table.volume_bytes and table.nics else (None,)
    every = product(enumerate(table.attention), enumerate(table.ffn), enumerate(pairs))
    fitting = [choice for choice in every if _fits(*(one for _, one in choice), budgets)]
    timed = [(_seconds(table, *(one for _, one in choice)), choice) for choice in fitting]
    if not timed:
        return None
    fastest = min(seconds for seconds, _ in timed)
    seconds, choice = min((t for t in timed if t[0] <= fastest * (1 + 1e-9)), key=lambda timed: _preference(*timed[1]))
    return seconds, *(one for _, one in choice)


def _fits(attention, ffn, pair, budgets):
    return (
        attention.gpus + ffn.gpus <= budgets.gpus
        and max(attention.hbm_bytes, ffn.hbm_bytes) <= budgets.hbm_bytes
        and (
            pair is None
            or (pair.attention + pair.ffn <= budgets.nics and pair.attention <= attention.nics and pair.ffn <= ffn.nics)
        )
    )


def _seconds(table, attention, ffn, pair):
    network = table.volume_bytes / NIC / min(pair.attention, pair.ffn) if pair else 0.0
    return max(attention.seconds, ffn.seconds, network)


def _preference(attention, ffn, pair):
    (i, a), (j, f), (k, p) = attention, ffn, pair
    return a.gpus + f.gpus, a.gpus, abs(p.attention - p.ffn) if p else 0, i, j, k


def answer(choice):
    return choice.seconds, choice.attention, choice.ffn, choice.nics


@pytest.mark.parametrize("seed", range(120))
def test_equals_brute_force(seed):
    expected = brute_force(*drawn(seed))
    if expected is None:
        with pytest.raises(InfeasibleError):
            solve(*drawn(seed))
    else:
        choice = solve(*drawn(seed))
        assert answer(choice) == expected
        assert (choice.status, choice.gap) == ("optimal", 0.0)


def test_drawn_tables_are_of_every_kind():
    answers = [brute_force(*drawn(seed)) for seed in range(120)]
    assert sum(a is None for a in answers) >= 20
    assert sum(a is not None and a[3] is None for a in answers) >= 20
    assert sum(a is not None and a[3] is not None for a in answers) >= 30


@pytest.mark.parametrize("seed", range(8))
def test_equals_the_same_model_in_cvxpy(seed):
    feasible = [s for s in range(8 * seed, 8 * seed + 40) if (a := brute_force(*drawn(s))) and a[3]]
    table, budgets = drawn(feasible[0])
    assert solve(table, budgets).seconds == pytest.approx(by_cvxpy(table, budgets), rel=1e-9)


def by_cvxpy(table, budgets):
    import cvxpy as cp
    import numpy as np

    tau, picks = cp.Variable(), [cp.Variable(len(g), boolean=True) for g in (table.attention, table.ffn, table.nics)]
    sides = [table.attention, table.ffn]
    nics = [np.array([k.attention for k in table.nics]), np.array([k.ffn for k in table.nics])]
    rules = [cp.sum(pick) == 1 for pick in picks]
    rules += [cp.sum([np.array([o.gpus for o in s]) @ x for s, x in zip(sides, picks, strict=False)]) <= budgets.gpus]
    rules += [(nics[0] + nics[1]) @ picks[2] <= budgets.nics]
    for side, pick, count in zip(sides, picks, nics, strict=False):
        rules += [np.array([o.seconds for o in side]) @ pick <= tau]
        rules += [(table.volume_bytes / table.nic_bytes_per_s / count) @ picks[2] <= tau]
        rules += [count @ picks[2] <= np.array([o.nics for o in side]) @ pick]
        rules += [pick[i] == 0 for i, o in enumerate(side) if o.hbm_bytes > budgets.hbm_bytes]
    problem = cp.Problem(cp.Minimize(tau), rules)
    problem.solve(solver=cp.HIGHS, mip_rel_gap=0, mip_feasibility_tolerance=1e-10, primal_feasibility_tolerance=1e-10)
    assert problem.status == "optimal"
    return problem.value


def test_rows_have_the_names_of_the_model():
    sides = [f"{side}_{row}" for side in ("attention", "ffn") for row in ("compute", "memory", "network", "nic_reach")]
    assert sorted(ROWS) == sorted([*sides, "one_attention", "one_ffn", "one_nics", "gpu_budget", "nic_budget"])


@pytest.mark.parametrize("name", ROWS)
def test_every_row_matters(name, monkeypatch):
    """There is a table which is answered rightly with all rows, and wrongly without the one called `name`."""
    cases = (case for case in map(drawn, range(1000)) if (best := brute_force(*case)) and best[3])
    monkeypatch.setattr(allocation, "rows", lambda *case: [row for row in rows(*case) if row.name != name])
    wrong = next(case for case in cases if answer_or_error(*case) != brute_force(*case))
    monkeypatch.undo()
    assert answer(solve(*wrong)) == brute_force(*wrong)


def answer_or_error(table, budgets):
    try:
        return answer(solve(table, budgets))
    except SolverError as error:
        assert "one of each" in str(error)  # noqa: PT017
        return None


@pytest.mark.parametrize("volume", [2.0, 20.0, 60.0])
@pytest.mark.parametrize(("attention", "ffn"), [(8.0, 10.0), (1.0, 30.0)])
def test_all_splits_reach_the_closed_form_but_for_whole_numbers(attention, ffn, volume):
    """At least the continuous optimum, and at most that of one GPU and one NIC less."""
    table, budgets = roofline(attention, ffn, volume * NIC, gpus=12, nics=8)
    choice = solve(table, budgets)
    assert answer(choice) == brute_force(table, budgets)
    relaxed = relax(attention, ffn, volume * NIC, NIC, budgets)
    assert choice.seconds >= relaxed.seconds * (1 - 1e-8)
    assert choice.seconds <= max((attention + ffn) / (budgets.gpus - 1), 2 * volume / (budgets.nics - 1)) * (1 + 1e-9)


def test_where_the_network_binds_more_ffn_gpus_change_nothing():
    table, budgets = roofline(8.0, 10.0, 40 * NIC, gpus=12, nics=8)
    more, _ = roofline(8.0, 10.0, 40 * NIC, gpus=24, nics=8)
    first, second = solve(table, budgets), solve(replace(table, ffn=more.ffn), replace(budgets, gpus=24))
    assert first.seconds == second.seconds == 10.0
    assert answer(first) == answer(second)
    assert relax(8.0, 10.0, 40 * NIC, NIC, replace(budgets, gpus=24)).seconds == pytest.approx(10.0)


def test_of_equally_fast_choices_the_one_with_fewest_gpus_is_taken():
    choice = solve(*roofline(8.0, 10.0, 40 * NIC, gpus=12, nics=8))
    assert (choice.attention.gpus, choice.ffn.gpus, choice.nics) == (1, 1, NicOption(4, 4))


@pytest.mark.parametrize(("slower", "gpus"), [(1 + 5e-10, 2), (1 + 1e-8, 3)])
def test_times_within_a_billionth_are_equal(slower, gpus):
    table = OptionTable((option(1, slower), option(2, 1.0)), (option(1, 0.1),), (), 0.0, NIC)
    choice = solve(table, BUDGETS)
    assert choice.attention.gpus + choice.ffn.gpus == gpus


def test_the_earlier_of_equal_options_is_taken():
    twice = tuple(option(1, 1.0, name=name) for name in ("short", "short"))
    table = OptionTable(twice, twice, (NicOption(1, 1), NicOption(2, 2), NicOption(1, 1)), 0.5 * NIC, NIC)
    choice = solve(table, BUDGETS)
    assert choice.attention is twice[0]
    assert choice.nics is table.nics[0]


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_a_start_changes_no_answer(seed):
    table, budgets = drawn(seed)
    if (expected := brute_force(table, budgets)) is not None:
        relaxed = relax(8.0, 8.0, table.volume_bytes, NIC, budgets)
        assert answer(solve(table, budgets, start=relaxed)) == expected


@pytest.mark.parametrize(
    ("limit", "status"),
    [({"time_limit_s": 0.0}, "time limit"), ({"node_limit": 0}, "node limit")],
    ids=["time", "nodes"],
)
def test_a_limit_that_stops_the_search_is_told(limit, status):
    table, budgets = roofline(800.0, 1000.0, 60 * NIC, gpus=40, nics=24)
    relaxed = relax(800.0, 1000.0, 60 * NIC, NIC, budgets)
    choice = solve(table, budgets, start=relaxed, **limit)
    assert (choice.attention, choice.ffn, choice.nics) == rounded(relaxed, table, budgets)
    assert choice.status == status
    assert 0 < choice.gap <= 1
    with pytest.raises(SolverError, match="limit reached"):
        solve(table, budgets, **limit)


def test_the_model_as_text(golden):
    golden("milp/allocation.lp", model_text(TABLE, BUDGETS))


def test_the_text_is_the_model():
    import highspy

    highs = highspy.Highs()
    highs.silent()
    highs.readModel(str(Path(__file__).parents[1] / "golden/milp/allocation.lp"))
    highs.run()
    assert highs.getInfo().objective_function_value * 1.5 == pytest.approx(solve(TABLE, BUDGETS).seconds)
    assert [highs.getRowName(i)[1] for i in range(highs.getNumRow())] == ROWS


def test_nothing_is_printed(capfd):
    solve(TABLE, BUDGETS)
    assert capfd.readouterr() == ("", "")


def test_import_loads_no_solver():
    code = "import sys, moeplan.optimizer.allocation; sys.exit({'highspy', 'cvxpy'} & set(sys.modules) != set())"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
