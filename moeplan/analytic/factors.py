"""What the constants of a calibration do to the seconds of a form's classes."""

from __future__ import annotations

import numpy as np

from moeplan.analytic.form import CLASSES, Floats
from moeplan.spec.calibration import Constants

NAMES = Constants.__struct_fields__
ACTS_ON = {"hbm": "stream", "expert_bandwidth": "expert"}
"""The class that a factor acts on, where it has another name."""
_COLUMNS = [CLASSES.index(ACTS_ON.get(name, name)) for name in NAMES]


def factors_of(constants: Constants) -> Floats:
    """The constants in their order [factors]."""
    return np.array([getattr(constants, name) for name in NAMES], dtype=np.float64)


def on_classes(factors: Floats) -> Floats:
    """What `factors` [..., factors] multiply seconds by: 1 / factor, and the host's by its factor [..., classes]."""
    times = np.ones((*factors.shape[:-1], len(CLASSES)))
    for number, (name, column) in enumerate(zip(NAMES, _COLUMNS, strict=True)):
        times[..., column] = factors[..., number] if name == "host" else 1 / factors[..., number]
    return times
