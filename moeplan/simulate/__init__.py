"""The simulator: a program and durations in, a timeline out; SimPy is imported here only."""

from __future__ import annotations

from moeplan.simulate.chrome import read_chrome, write_chrome
from moeplan.simulate.engine import compute_streams, run
from moeplan.simulate.links import Demand
from moeplan.simulate.metrics import Metrics, Use, metrics
from moeplan.simulate.timeline import Timeline, step_ns, timeline_to_trace

__all__ = [
    "Demand",
    "Metrics",
    "Timeline",
    "Use",
    "compute_streams",
    "metrics",
    "read_chrome",
    "run",
    "step_ns",
    "timeline_to_trace",
    "write_chrome",
]
