"""Mixed-integer programs with named rows and columns, solved by HiGHS on one thread, so that equal ones end equally."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from moeplan.errors import InfeasibleError, SolverError

if TYPE_CHECKING:
    import highspy

Terms = Mapping[str, float]
"""Column name to coefficient or value."""
_HIGHS: Mapping[str, str | float] = {
    "threads": 1,
    "presolve": "off",  # it takes most of the time where there are thousands of NIC pairs
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.0,
    "mip_feasibility_tolerance": 1e-10,
    "primal_feasibility_tolerance": 1e-10,
}
CONTINUOUS = ("short_", "both_", "round_")
"""How the names of columns begin that are not binary, beside tau: slacks, products of binaries, and detours."""
_STATUS = {"kOptimal": "optimal", "kSolutionLimit": "node limit", "kTimeLimit": "time limit"}


class Row(NamedTuple):
    """One named constraint: terms <= bound, or terms = bound."""

    name: str
    terms: Terms
    bound: float = 0.0
    sense: str = "<="


class Solution(NamedTuple):
    """Values of all columns, why the solver stopped, and a bound that no solution goes below."""

    values: Terms
    status: str
    bound: float


def quiet_highs() -> highspy.Highs:
    """HiGHS without the banner that it prints where callbacks are switched on; none are used here."""
    import highspy

    class Quiet(highspy.Highs):
        def enableCallbacks(self) -> None:  # noqa: N802
            self.silent()

    return Quiet()  # type: ignore[no-untyped-call]


class Solver:
    """HiGHS on one thread; columns are binary but for tau, the slacks and the products of binaries."""

    def __init__(
        self, model: Sequence[Row], time_limit_s: float = 10.0, node_limit: int = 10_000, **options: str | float
    ) -> None:
        import highspy

        names = dict.fromkeys(name for row in model for name in row.terms)
        self._index = {name: i for i, name in enumerate(names)}
        self._start: Terms = {}
        self._highs = highs = quiet_highs()
        highs.resetGlobalScheduler(True)
        limits = {"time_limit": time_limit_s, "mip_max_nodes": node_limit}
        for option, value in {**_HIGHS, **limits, **options}.items():
            highs.setOptionValue(option, value)
        for name, i in self._index.items():
            whole = name != "tau" and not name.startswith(CONTINUOUS)
            highs.addVar(0.0, 1.0 if whole else highspy.kHighsInf)
            highs.passColName(i, name)
            if whole:
                highs.changeColIntegrality(i, highspy.HighsVarType.kInteger)
        for row in model:
            self.add(row)

    def add(self, row: Row) -> None:
        """Append a row over known columns."""
        index = np.array([self._index[name] for name in row.terms], dtype=np.int32)
        lower = row.bound if row.sense == "=" else -math.inf
        self._highs.addRow(lower, row.bound, len(index), index, np.array(list(row.terms.values()), dtype=float))
        self._highs.passRowName(self._highs.getNumRow() - 1, row.name)

    def start_at(self, values: Terms) -> None:
        """Give a first solution, which is also the answer where a limit comes before any other."""
        import highspy

        self._start = {name: values.get(name, 0.0) for name in self._index}
        solution = highspy.HighsSolution()
        solution.col_value = list(self._start.values())
        self._highs.setSolution(solution)

    def minimise(self, goal: Terms) -> Solution:
        """The best solution; InfeasibleError where there is none, SolverError where none was found."""
        import highspy

        highs = self._highs
        for name, i in self._index.items():
            highs.changeColCost(i, goal.get(name, 0.0))
        highs.run()
        stop, info = highs.getModelStatus(), highs.getInfo()
        if stop.name in ("kInfeasible", "kUnboundedOrInfeasible"):
            raise InfeasibleError("no values of the columns satisfy all rows")
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if stop.name not in _STATUS or not (found or self._start):
            raise SolverError(f"allocation: the solver stopped with {highs.modelStatusToString(stop)!r}")
        values = dict(zip(self._index, highs.getSolution().col_value, strict=True)) if found else self._start
        return Solution(values, _STATUS[stop.name], info.mip_dual_bound)
