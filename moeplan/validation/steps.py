"""Settings priced: the form of a step, and the memory of a rank at each position."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moeplan.analytic.form import Form, form
from moeplan.cost.pricing import Machine, Pricing
from moeplan.draft import dealt
from moeplan.errors import MoeplanError
from moeplan.layouts import stages
from moeplan.peaks import Peak, peak_of
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.spec.record import to_json
from moeplan.spec.shipped import load_calibration
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.validation.outcome import skipping
from moeplan.validation.settings import Setting, vary


class Forms(NamedTuple):
    """The steps that a row may mean."""

    calibration: str
    """The name of the efficiencies that they were priced with."""
    taken: Form
    others: tuple[Form, ...]
    """With each of the things that nobody published as it may be instead."""
    scales: tuple[float, ...]
    """Measured seconds of the step that is taken over those of each of `others`: 1 where a step was printed, the ratio
    of their tokens where only tokens per second were."""


class Steps:
    """Forms of settings; equal settings are priced once, and routes of a machine are searched once."""

    def __init__(self) -> None:
        self._machines: dict[bytes, Machine] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._forms: dict[bytes, Form] = {}

    def forms(self, found: Setting, measured_s: Callable[[Workload], float] = lambda workload: 1.0) -> Forms:
        """The form of `found`, and of what it may be instead; Skip where `found` cannot be priced.

        `measured_s` is what was measured, in seconds per step of a workload.
        """
        with skipping():
            taken = self.form(found)
        others = [vary(found, alternative) for entry in found.unknown for alternative in entry.alternatives]
        priced = [(one, other.case.workload) for other in others if (one := self._tried(other)) is not None]
        whole = measured_s(found.case.workload) if priced else 1.0
        scales = tuple(whole / measured_s(workload) for _, workload in priced)
        return Forms(found.case.cluster.calibration, taken, tuple(one for one, _ in priced), scales)

    def form(self, found: Setting) -> Form:
        """The form of `found`; MoeplanError as the layout, its price or its schedule say."""
        key = to_json(found[:4])
        if key not in self._forms:
            graph = stages(found.case, found.layout)
            pricing = Pricing(found.case, graph, self.machine(found.case), found.recompute)
            self._forms[key] = form(pricing, dealt(found.case, found.layout, graph), found.schedule)
        return self._forms[key]

    def machine(self, case: Case) -> Machine:
        """Routes of the case's cluster and the efficiencies that it names."""
        key = to_json(case.cluster)
        if key not in self._machines:
            self._machines[key] = Machine(Fabric(build(case.cluster)), self.calibration(case))
        return self._machines[key]

    def calibration(self, case: Case) -> Calibration:
        """The efficiencies that the case's cluster names."""
        name = case.cluster.calibration
        if name not in self._calibrations:
            self._calibrations[name] = load_calibration(name)
        return self._calibrations[name]

    def _tried(self, found: Setting) -> Form | None:
        try:
            return self.form(found)
        except MoeplanError:
            return None


def peak(found: Setting) -> Peak:
    """Most bytes of one rank at each position, under the setting's own schedule; Skip where it has none for it."""
    case, layout, recompute, schedule = found[:4]
    with skipping():
        return peak_of(case, layout, recompute, schedule)
