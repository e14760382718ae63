"""Which option attention and FFN take, and how their NICs are split: a one-hot integer program.

The stage times are those of DisagMoE, section 4.3; one-hot options, memory rows and tie-breaks are our own.

    symbol      meaning                                                   in the model
    x_i, y_j    1 where attention takes option i, FFN option j, else 0    attention_*, ffn_*
    z_k         1 where the NICs are split as pair k, else 0              nics_*
    tau         seconds of the slowest side, in units of U                tau
    U           seconds that no choice goes below                         options.least_seconds
    s, g, r     seconds, GPUs, reachable NICs of an option                SideOption
    e           GiB per GPU of an option above the HBM budget             options.excess_bytes
    a_k, f_k    NICs of attention and of FFN in pair k                    NicOption
    V, B        bytes between the sides per direction, NIC bandwidth      OptionTable
    W, M        GPUs, NICs                                                Budgets

Least tau comes first. Of the choices within 1e-9 of it the one with fewest GPUs is taken, then with fewest attention
GPUs, then with the evenest split of NICs, then the first in the table. Latency, contention and pipeline bubbles are
left out. Without a network the rows about NICs vanish.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from moeplan.errors import InfeasibleError, SolverError
from moeplan.optimizer.milp import Row, Solution, Solver, Terms
from moeplan.optimizer.relaxation import Relaxed, rounded
from moeplan.options import (
    Budgets,
    Choice,
    OptionTable,
    Taken,
    check_reach,
    excess_bytes,
    has_network,
    least_seconds,
    network_seconds,
    step_seconds,
)

Columns = Mapping[str, Mapping[str, Any]]
"""For "attention", "ffn", "nics": the options by the name of their binary column."""
_TAU = {"tau": 1.0}
_SIDES = ("attention", "ffn")
_SAME = 1e-9
_MIB, _GIB = 1024**2, 1024**3
_SHORT = {
    "gpu_budget": "GPUs short by {:.0f} (budget {:.0f})",
    "nic_budget": "NICs short by {:.0f} (budget {:.0f})",
    "attention_memory": "attention HBM short by {:.1f} GiB per GPU (budget {:.1f} GiB)",
    "ffn_memory": "FFN HBM short by {:.1f} GiB per GPU (budget {:.1f} GiB)",
}


def solve(
    table: OptionTable,
    budgets: Budgets,
    *,
    start: Relaxed | None = None,
    time_limit_s: float = 10.0,
    node_limit: int = 10_000,
) -> Choice:
    """The fastest choice within the budgets, ties broken as above.

    Equal inputs give equal choices, except where `status` says that `time_limit_s` ended the search. `start` gives the
    solver a first choice. Raises InfeasibleError with what is short by how much, and SolverError where a limit came
    before any choice.
    """
    check_reach(table)
    unit, options = least_seconds(table), columns(table)
    solver = Solver(rows(table, budgets), time_limit_s, node_limit)
    if start and (seed := rounded(start, table, budgets)):
        tau = step_seconds(table, *seed) / unit
        solver.start_at(_values(options, seed) | {"tau": tau})
        solver.add(Row("seed", _TAU, tau * (1 + _SAME)))
    try:
        fastest = solver.minimise(_TAU)
    except InfeasibleError:
        raise InfeasibleError(f"allocation: {_shortfall(table, budgets)}") from None
    seconds = step_seconds(table, *_taken(options, fastest.values))
    solver.add(Row("fastest", _TAU, seconds / unit * (1 + _SAME)))
    best = _break_ties(solver, options, fastest)
    taken = _taken(options, best.values)
    gap = 0.0 if fastest.status == "optimal" else 1 - max(0.0, fastest.bound) * unit / (seconds or unit)
    return Choice(*taken, seconds=step_seconds(table, *taken), status=best.status, gap=max(0.0, gap))


def model_text(table: OptionTable, budgets: Budgets) -> str:
    """The first phase as the text of an LP file."""
    lines = [f"\\ tau in units of {least_seconds(table)!r} s", "Minimize", " bottleneck: tau", "Subject To"]
    for name, terms, bound, sense in rows(table, budgets):
        left = " ".join(f"{value:+.12g} {column}" for column, value in terms.items()) or "+0 tau"
        lines += textwrap.wrap(f" {name}: {left} {sense} {bound:.12g}", 110, subsequent_indent="   ")
    binaries = " ".join(name for group in columns(table).values() for name in group)
    return "\n".join([*lines, "Binaries", *textwrap.wrap(f" {binaries}", 110, subsequent_indent=" "), "End\n"])


def columns(table: OptionTable) -> Columns:
    """The binary columns: number of the option, then its name."""
    pairs = table.nics if has_network(table) else ()
    return {
        "attention": {_name("attention", i, option.name): option for i, option in enumerate(table.attention)},
        "ffn": {_name("ffn", j, option.name): option for j, option in enumerate(table.ffn)},
        "nics": {_name("nics", k, f"{pair.attention}_{pair.ffn}"): pair for k, pair in enumerate(pairs)},
    }


def rows(table: OptionTable, budgets: Budgets) -> list[Row]:
    """All constraints of the first phase.

    one_attention   sum_i x_i = 1, and the same of y (one_ffn) and z (one_nics)
    gpu_budget      sum_i g_i x_i + sum_j g_j y_j <= W
    nic_budget      sum_k (a_k + f_k) z_k <= M
    """
    options = columns(table)
    model = [Row(f"one_{group}", _sum(every, lambda o: 1.0), 1.0, "=") for group, every in options.items() if every]
    model += [row for side in _SIDES for row in _side_rows(side, options, table, budgets)]
    gpus = _sum(options["attention"], attrgetter("gpus")) | _sum(options["ffn"], attrgetter("gpus"))
    model.append(Row("gpu_budget", gpus, budgets.gpus))
    if nics := _sum(options["nics"], lambda k: k.attention + k.ffn):
        model.append(Row("nic_budget", nics, budgets.nics))
    return model


def _side_rows(side: str, options: Columns, table: OptionTable, budgets: Budgets) -> Iterator[Row]:
    """The constraints of attention; those of FFN are the same with y and f.

    attention_compute     sum_i s_i x_i / U <= tau
    attention_memory      sum_i e_i x_i <= 0, with e in whole MiB: one byte would drown in the solver's tolerance
    attention_network     sum_k V / (a_k B U) z_k <= tau
    attention_nic_reach   sum_k a_k z_k <= sum_i r_i x_i
    """
    mine, pairs, nics, unit = options[side], options["nics"], attrgetter(side), least_seconds(table)
    yield Row(f"{side}_compute", _sum(mine, lambda o: o.seconds / unit) | {"tau": -1.0})
    yield Row(f"{side}_memory", _sum(mine, lambda o: math.ceil(excess_bytes(o, budgets) / _MIB) / 1024))
    if pairs:
        yield Row(f"{side}_network", _sum(pairs, lambda k: network_seconds(table, nics(k)) / unit) | {"tau": -1.0})
        yield Row(f"{side}_nic_reach", _sum(pairs, nics) | _sum(mine, lambda o: -o.nics))


def _break_ties(solver: Solver, options: Columns, found: Solution) -> Solution:
    """Minimise each goal in turn, holding the earlier ones; the status is the first that is not "optimal"."""
    status = found.status
    for name, goal in _goals(options).items():
        solver.start_at(found.values)
        found = solver.minimise(goal)
        status = found.status if status == "optimal" else status
        reached = sum(weight for column, weight in goal.items() if found.values[column] > 0.5)
        solver.add(Row(name, goal, reached + 0.5))
    return found._replace(status=status)


def _goals(options: Columns) -> dict[str, Terms]:
    """What decides between equally fast choices, in this order; all are whole numbers."""
    attention, ffn, pairs = options.values()
    gpus = attrgetter("gpus")
    goals = {
        "used_gpus": _sum(attention, gpus) | _sum(ffn, gpus),
        "attention_gpus": _sum(attention, gpus),
        "nic_imbalance": _sum(pairs, lambda k: abs(k.attention - k.ffn)),
    }
    place = {f"first_{group}": dict(zip(every, range(len(every)), strict=True)) for group, every in options.items()}
    return {name: goal for name, goal in (goals | place).items() if goal}


def _shortfall(table: OptionTable, budgets: Budgets) -> str:
    """Which budget is short by how much: in the elastic twin a named slack may exceed each budget.

    minimise sum_b slack_b / budget_b   with   budget row b: terms - slack_b <= bound_b
    """
    gib = budgets.hbm_bytes / _GIB
    given = dict(zip(_SHORT, (budgets.gpus, budgets.nics, gib, gib), strict=True))
    model = [
        row._replace(terms={**row.terms, f"short_{row.name}": -1.0}) if row.name in given else row
        for row in rows(table, budgets)
    ]
    found = Solver(model).minimise({f"short_{name}": 1 / max(1.0, amount) for name, amount in given.items()})
    attention, ffn, pair = _taken(columns(table), found.values)
    needed = (attention.gpus + ffn.gpus, pair.attention + pair.ffn if pair else 0)
    short: list[float] = [max(0, need - has) for need, has in zip(needed, (budgets.gpus, budgets.nics), strict=True)]
    short += [math.ceil(10 * excess_bytes(option, budgets) / _GIB - 1e-9) / 10 for option in (attention, ffn)]
    texts = zip(_SHORT.values(), short, given.values(), strict=True)
    return "; ".join(text.format(amount, budget) for text, amount, budget in texts if amount)


def _taken(options: Columns, values: Terms) -> Taken:
    """The option of attention, of FFN, and the NIC pair (None without a network)."""
    taken = [[o for name, o in every.items() if values[name] > 0.5] for every in options.values()]
    if any(len(group) != bool(every) for group, every in zip(taken, options.values(), strict=True)):
        raise SolverError(f"allocation: {[len(group) for group in taken]} options taken, one of each was asked for")
    (attention,), (ffn,), pair = taken
    return attention, ffn, pair[0] if pair else None


def _values(options: Columns, taken: Taken) -> dict[str, float]:
    """1 for the columns of `taken`."""
    pairs = zip(options.values(), taken, strict=True)
    return {next(name for name, option in every.items() if option is one): 1.0 for every, one in pairs if one}


def _name(group: str, number: int, text: str) -> str:
    return re.sub(r"\W+", "_", f"{group}_{number}_{text}")


def _sum(options: Mapping[str, Any], weight: Callable[[Any], float]) -> dict[str, float]:
    return {name: float(value) for name, option in options.items() if (value := weight(option))}
