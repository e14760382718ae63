"""What-ifs: one question asked again and again with one input changed."""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from moeplan.cost.durations import Machine
from moeplan.errors import SpecError
from moeplan.layout import Disaggregated
from moeplan.optimizer.candidate import describe
from moeplan.optimizer.disaggregate import first_guess, search_disaggregated
from moeplan.optimizer.search import Search
from moeplan.planner import machine_of
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case, check_case
from moeplan.spec.given import wrong_type
from moeplan.spec.shipped import calibration_of

if TYPE_CHECKING:
    import pandas as pd


def split_by_length(case: Case, calibration: Calibration | str | Path, seq_lens: Iterable[int]) -> pd.DataFrame:
    """How the GPUs are best split between attention and FFN, one row per sequence length in tokens.

    Tokens per step stay those of `case`: global batch = tokens / length. `attention_gpus` and `ffn_gpus` are those of
    the best disaggregated layout, all copies together, as `optimize` finds it; where none fits they are NaN, as are
    `step_s` and `tokens_per_s`. The balanced split, which gives both sides work for equally long, is continuous:
    memory and the divisors of the experts are ignored, nothing is recomputed, efficiencies are those of two equal
    sides. Its attention share rises with length, as attention has FLOP that grow with its square (DisagMoE, arXiv
    2605.11005, section 5.7). SpecError where a length does not divide the tokens.
    """
    import pandas as pd

    check_case(case)
    if not isinstance(seq_lens, Iterable):
        raise wrong_type(seq_lens, "seq_lens", "lengths in tokens, such as [4096, 8192]")
    cases = [at_length(case, length) for length in seq_lens]
    if not cases:
        raise SpecError("seq_lens: is empty; give at least one length in tokens, such as 4096")
    machine = machine_of(case, calibration_of(calibration))
    return pd.DataFrame([_split(one, machine) for one in cases])


def at_length(case: Case, seq_len: int) -> Case:
    """`case` with sequences of `seq_len` tokens and as many of them as keep the tokens per step.

    SpecError where they cannot.
    """
    tokens = case.workload.seq_len * case.workload.global_batch
    try:
        seq_len = index(seq_len)
    except TypeError:
        raise wrong_type(seq_len, "seq_lens", "whole numbers of tokens, such as 4096") from None
    if seq_len < 1 or tokens % seq_len:
        raise SpecError(f"seq_lens: {seq_len} does not divide {tokens} tokens per step; take one of its divisors")
    workload = structs.replace(case.workload, seq_len=seq_len, global_batch=tokens // seq_len)
    return structs.replace(case, workload=workload)


def _split(case: Case, machine: Machine) -> dict[str, Any]:
    """One row: the length, the best layout, the balanced split."""
    balanced = first_guess(case, machine, 1)
    row = {"seq_len": case.workload.seq_len, "global_batch": case.workload.global_batch, **_best(case, machine)}
    return row | {
        "balanced_attention_gpus": balanced.attention_gpus,
        "balanced_ffn_gpus": balanced.ffn_gpus,
        "balanced_attention_per_ffn": balanced.attention_gpus / balanced.ffn_gpus,
    }


def _best(case: Case, machine: Machine) -> dict[str, Any]:
    """The best layout of two sides, if any fits."""
    plan = search_disaggregated(Search(case, machine)).best
    if plan is None or not isinstance(plan.layout, Disaggregated):
        numbers = ("attention_gpus", "ffn_gpus", "attention_per_ffn", "step_s", "tokens_per_s")
        return {"fits": False, "layout": "-", "recompute": "-", **dict.fromkeys(numbers, nan)}
    layout = plan.layout
    return {
        "fits": True,
        "layout": describe(layout, case.model),
        "recompute": f"{plan.recompute.attention}/{plan.recompute.ffn}",
        "attention_gpus": float(layout.attention_gpus * layout.dp),
        "ffn_gpus": float(layout.ffn_gpus * layout.dp),
        "attention_per_ffn": layout.attention_gpus / layout.ffn_gpus,
        "step_s": plan.predictions.step_s,
        "tokens_per_s": plan.predictions.tokens_per_s,
    }
