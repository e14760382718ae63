"""FLOP of one token as publications count them, to compare with TFLOPS over tokens per second."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moeplan.resources import mixer
from moeplan.resources.flop import STEP, forward_flop, further_token_flop
from moeplan.spec.model import STATE, Mamba2, ModelSpec, windows
from moeplan.spec.record import Record
from moeplan.tables import Rows
from moeplan.validation.names import PUBLISHED
from moeplan.validation.printed import Counts
from moeplan.validation.tables import Text, read_table


class Convention(Record):
    """How one publication counts; the defaults are those of Megatron-LM since March 2025."""

    prefix: Text
    """Of the ids of its rows."""
    attention: Literal["half", "full"] = "half"
    """Whether scores and values count the causal half of all pairs, or all."""
    mtp: Literal["counted", "left out"] = "counted"
    """Whether modules that predict further tokens are counted, where the model has any."""
    hybrid: Literal["as built", "megatron"] = "as built"
    """How layers without attention count: as they are, or as in Megatron-LM's formula for hybrid models, which takes 2
    hidden for the inner width of Mamba-2, and leaves out the matrix that joins two vectors in MTP modules."""
    peak: str = ""
    """What its MFU divides by, as far as that is printed."""
    memory: Literal["fullest", "last"] = "fullest"
    """Whose peak memory is printed: the fullest rank's, or the last pipeline stage's."""
    counts: Counts = "allocated"
    """What that memory is: see `validate.printed`."""
    note: str = ""


def read_conventions(path: Path) -> dict[str, Convention]:
    """Conventions by prefix; SpecError as `read_table`."""
    return {row.prefix: row for row in read_table(path, Convention, key=("prefix",))}


def flop_per_token(model: ModelSpec, seq_len: int, convention: Convention) -> float:
    """FLOP of one token's forward and backward pass as `convention` counts.

    `resources.flop.forward_flop` three times, without the router, which Megatron-LM leaves out. Full attention doubles
    the pairs of layers without a window. A module that predicts a further token is one layer with attention and
    experts, a matrix 2 hidden x hidden and the head once more.
    """
    counted = model.mtp_layers if convention.mtp == "counted" else 0
    total = forward_flop(model, seq_len, pairs=convention.attention, router=False)
    if counted:
        total += counted * further_token_flop(model, seq_len, pairs=convention.attention, router=False)
    if convention.hybrid == "megatron" and model.pattern:
        total += _megatron_hybrid(model, counted)
    return STEP * total


def _megatron_hybrid(model: ModelSpec, mtp_layers: int) -> float:
    """Forward FLOP of a token that Megatron-LM's formula for hybrid models has beyond those of the model as built.

    Source: hybrid_flops and mamba_layer_flops in NVIDIA/Megatron-LM, megatron/training/training.py, 2025 and 2026.
    """
    m, wider = model.mixer, -4.0 * model.hidden**2 * mtp_layers
    if isinstance(m, Mamba2):
        inner = 2 * model.hidden - m.heads * m.head_dim
        each = inner * (6 * model.hidden + 7 * m.state) - mixer.conv_flop(model)
        wider += windows(model, range(model.num_layers)).get(STATE, 0) * each
    return wider


def counting(convention: Convention) -> str:
    """The convention in words, as it stands behind every TFLOPS and MFU of its source."""
    pairs = "causal half of attention" if convention.attention == "half" else "all pairs of attention"
    return f"{pairs}, MTP {convention.mtp}, no router"


def convention_rows() -> Rows:
    """How each source of the tables that ship counts FLOP and what its MFU divides by, for readers."""
    sources = read_conventions(PUBLISHED / "conventions.csv")
    return [
        {"of": name, "TFLOPS": counting(found), "MFU_of": found.peak or "not printed"}
        for name, found in sources.items()
    ]
