"""The inputs of one question, together."""

from __future__ import annotations

from moeplan.spec.cluster import ClusterSpec, check_cluster
from moeplan.spec.execution import Execution, check_execution
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


def check_case(case: Case) -> Case:
    """`case`, or SpecError with the first two numbers in it that do not go together."""
    for name in ("model", "workload", "memory", "execution"):
        validated(getattr(case, name), name)
    check_model(case.model)
    check_cluster(case.cluster)
    check_memory(case.memory)
    check_execution(case.execution)
    return case
