"""The inputs of one question, together."""

from __future__ import annotations

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.cluster import ClusterSpec, check_cluster
from moeplan.spec.execution import PEAKS, Execution, check_execution
from moeplan.spec.given import of_type
from moeplan.spec.model import ModelSpec, check_model
from moeplan.spec.record import Record, validated
from moeplan.spec.workload import Memory, Workload, check_memory


class Case(Record):
    """A model to train, the machine to train it on, and the step."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    memory: Memory = Memory()
    execution: Execution = Execution()


KINDS: dict[str, type[Record]] = {
    "model": ModelSpec,
    "cluster": ClusterSpec,
    "workload": Workload,
    "memory": Memory,
    "execution": Execution,
}
"""What each field of a case is."""


def check_case(case: Case) -> Case:
    """`case`, its cluster without nodes to exclude; SpecError with the first two numbers that do not go together.

    Also where something is of another type.
    """
    check_kinds(case)
    for name in KINDS:
        validated(getattr(case, name), name)
    check_model(case.model)
    cluster = check_cluster(case.cluster)
    check_memory(case.memory)
    check_execution(case.execution)
    _check_linear(case.execution.linear, case.cluster)
    _check_mtp(case)
    return case if cluster is case.cluster else structs.replace(case, cluster=cluster)


def check_kinds(case: Case) -> Case:
    """`case`, or SpecError where it is none, or holds a record of another kind, as one made in Python may."""
    of_type(case, Case, "case", right="a Case(model=..., cluster=..., workload=...)")
    for name, kind in KINDS.items():
        made = f"a {kind.__name__}" + (f", as load_{name}(...) gives" if name in ("model", "cluster") else "")
        of_type(getattr(case, name), kind, name, right=made)
    return case


def _check_linear(linear: str, cluster: ClusterSpec) -> None:
    """SpecError where the GPUs cannot multiply in `linear`."""
    peaks, name = cluster.gpu.peak_flop_per_s, PEAKS.get(linear, linear)
    if linear != "same" and name not in peaks:
        known = ", ".join(peaks)
        raise SpecError(f"execution.linear {linear}: gpu {cluster.gpu.name!r}: no peak for {name}; there are {known}")


def _check_mtp(case: Case) -> None:
    """SpecError where modules of further tokens are to be trained that the model does not have."""
    if case.memory.mtp and not case.model.mtp_layers:
        raise SpecError(f"memory.mtp true: model {case.model.name} has no MTP modules (mtp_layers 0); right is false")
