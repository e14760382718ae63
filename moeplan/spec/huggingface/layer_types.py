"""Lists with one entry per layer: which layers see all tokens, and values that must be the same in every layer."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.errors import SpecError

FULL = "full_attention"


def full_every(types: Sequence[str], other: str, layers: int, where: str) -> int:
    """n where each n-th of `layers` entries is full attention and the rest are `other`; SpecError where none is."""
    if len(types) != layers:
        raise SpecError(f"{where}: layer_types has {len(types)} entries for num_hidden_layers {layers}")
    every = types.index(FULL) + 1 if FULL in types else layers + 1
    for layer, found in enumerate(types):
        if found != (other if (layer + 1) % every else FULL):
            raise SpecError(
                f"{where}: layer_types[{layer}] {found!r} is not read; right: {FULL!r} in every n-th layer,"
                f" {other!r} in the others"
            )
    return every


def uniform(value: int | tuple[int, ...], layers: int, key: str, where: str) -> int:
    """The one value of `key`, given once or alike for each of `layers`; SpecError where layers differ."""
    if isinstance(value, int):
        return value
    if not value or len(value) != layers:
        raise SpecError(f"{where}: {key} has {len(value)} entries for num_hidden_layers {layers}")
    for layer, found in enumerate(value):
        if found != value[0]:
            raise SpecError(f"{where}: {key}[{layer}] {found} differs from {key}[0] {value[0]}; right: one value")
    return value[0]
