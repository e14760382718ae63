"""moeplan plans, simulates and runs the training of Mixture-of-Experts language models.

import moeplan as mp

cluster = mp.load_cluster("laptop")
case = mp.Case(
    model=mp.load_model("tiny-moe"), cluster=cluster, workload=mp.Workload(seq_len=64, global_batch=16)
)
ranking = mp.optimize(case, mp.load_calibration(cluster.calibration))
ranking.best.predictions.step_s
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Case": "moeplan.spec.case",
    "Memory": "moeplan.spec.workload",
    "Plan": "moeplan.plan",
    "Ranking": "moeplan.planner",
    "Workload": "moeplan.spec.workload",
    "load_calibration": "moeplan.spec.shipped",
    "load_cluster": "moeplan.spec.shipped",
    "load_model": "moeplan.spec.shipped",
    "optimize": "moeplan.planner",
    "read_plan": "moeplan.plan",
    "write_plan": "moeplan.plan",
}
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used, so that `import moeplan` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'moeplan' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
