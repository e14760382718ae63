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

__version__ = "0.2.0"

_HOMES = {
    "Case": "moeplan.spec.case",
    "ClusterSummary": "moeplan.machine.summary",
    "Colocated": "moeplan.layout",
    "Disaggregated": "moeplan.layout",
    "Estimate": "moeplan.estimator",
    "Execution": "moeplan.spec.execution",
    "Forecast": "moeplan.analytic.forecast",
    "Memory": "moeplan.spec.workload",
    "Piper": "moeplan.layout",
    "Plan": "moeplan.plan",
    "Ranking": "moeplan.ranking",
    "Recompute": "moeplan.layout",
    "Tables": "moeplan.validation",
    "Validation": "moeplan.validation.scores",
    "Workload": "moeplan.spec.workload",
    "closed_form": "moeplan.closed",
    "cluster_rows": "moeplan.machine.summary",
    "cluster_summary": "moeplan.machine.summary",
    "convert_topology": "moeplan.convert",
    "estimate": "moeplan.estimator",
    "first_gpus": "moeplan.spec.cluster",
    "load_calibration": "moeplan.spec.shipped",
    "load_cluster": "moeplan.spec.shipped",
    "load_model": "moeplan.spec.shipped",
    "optimize": "moeplan.planner",
    "override": "moeplan.spec.override",
    "plot_cluster": "moeplan.plots.cluster",
    "plot_split_by_length": "moeplan.plots.lengths",
    "read_plan": "moeplan.plan_file",
    "split_by_length": "moeplan.sweep",
    "validate": "moeplan.validation",
    "write_plan": "moeplan.plan_file",
}
"""Where a public name is defined: no public name may be that of a module."""
__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are first used, so that `import moeplan` stays quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'moeplan' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Public names, also those that are not loaded yet."""
    return sorted({*__all__, "__doc__", "__file__", "__name__", "__path__"})
