"""The schedules there are: one file each, one pure function `make(shape) -> Steps`."""

from __future__ import annotations

from collections.abc import Callable

from moeplan.errors import SpecError
from moeplan.schedule import Shape, Steps
from moeplan.schedules import af_pipe, gpipe, interleaved, one_f_one_b

SCHEDULES: dict[str, Callable[[Shape], Steps]] = {
    module.NAME: module.make for module in (gpipe, one_f_one_b, interleaved, af_pipe)
}


def make(name: str, shape: Shape) -> Steps:
    """The order of schedule `name` for `shape`; SpecError names the schedules there are."""
    if name not in SCHEDULES:
        raise SpecError(f"schedule {name!r} is not known; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name](shape)
