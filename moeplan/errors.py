"""The errors a user can meet, in one tree.

A message says where, what, the value, and what would be right.
"""

from __future__ import annotations


class MoeplanError(Exception):
    """Base of every error that is shown as one line instead of a traceback."""

    exit_code = 2


class SpecError(MoeplanError, ValueError):
    """An input that cannot be meant: a file, a field, an option."""


class ScheduleError(MoeplanError):
    """A schedule that is incomplete, out of order or deadlocked."""


class PlanVersionError(MoeplanError):
    """A plan file written by a moeplan that this one cannot read."""


class InfeasibleError(MoeplanError):
    """No layout fits; the message names what is short and by how much."""

    exit_code = 1


class SolverError(MoeplanError):
    """A solver stopped without an answer."""

    exit_code = 3


class ExecutionError(MoeplanError):
    """A run failed; every rank exits with 3."""

    exit_code = 3
