"""FLOP of one token as publications count them, to compare with TFLOPS over tokens per second."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from msgspec import structs

from moeplan.resources import attention
from moeplan.resources.work import model_flop_per_token
from moeplan.spec.model import ModelSpec, moe_layers, window_of
from moeplan.spec.record import Record
from moeplan.validate.tables import Text, read_table


class Convention(Record):
    """How one publication counts; the defaults are those of Megatron-LM since March 2025."""

    prefix: Text
    """Of the ids of its rows."""
    attention: Literal["half", "full"] = "half"
    """Whether scores and values count the causal half of all pairs, or all."""
    mtp: Literal["counted", "left out"] = "counted"
    """Whether modules that predict further tokens are counted, where the model has any."""
    memory: Literal["fullest", "last"] = "fullest"
    """Whose peak memory is printed: the fullest rank's, or the last pipeline stage's."""
    note: str = ""


def read_conventions(path: Path) -> dict[str, Convention]:
    """Conventions by prefix; SpecError as `read_table`."""
    return {row.prefix: row for row in read_table(path, Convention)}


def flop_per_token(model: ModelSpec, seq_len: int, convention: Convention) -> float:
    """FLOP of one token's forward and backward pass as `convention` counts.

    `resources.work.model_flop_per_token` without the router, which Megatron-LM leaves out: 6 hidden experts per MoE
    layer. Full attention doubles the pairs of layers without a window. A module that predicts a further token is one
    MoE layer, a matrix 2 hidden x hidden and the head once more.
    """
    total = _of_layers(model, seq_len)
    if convention.attention == "full":
        total += sum(_core(model, seq_len) for layer in range(model.num_layers) if not window_of(model, layer))
    if convention.mtp == "counted" and model.mtp_layers:
        total += model.mtp_layers * _further_token(model, seq_len, convention)
    return total


def _of_layers(model: ModelSpec, seq_len: int) -> float:
    routers = 6 * model.hidden * model.experts * moe_layers(model)
    return model_flop_per_token(model, seq_len) - routers


def _further_token(model: ModelSpec, seq_len: int, convention: Convention) -> float:
    one = structs.replace(model, num_layers=1, dense_layers=0, moe_every=1, mtp_layers=0)
    return flop_per_token(one, seq_len, convention) + 6 * 2 * model.hidden**2


def _core(model: ModelSpec, seq_len: int) -> float:
    """Scores and values of the causal half of one layer: 6 (queries + output) s / 2."""
    widths = attention.core(model)
    return 6 * (widths.queries + widths.output) * attention.pairs_per_token(seq_len)
