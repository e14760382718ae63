"""Square tables of text, one row and one column for each device."""

from __future__ import annotations

from collections.abc import Sequence

from moeplan.errors import SpecError


def square(lines: Sequence[tuple[int, str]], names: Sequence[str], where: str) -> list[list[str]]:
    """The cells of the rows in `lines` (number, text), one for each of `names` in their order: [row][column].

    What follows the last column is left out. SpecError where a row is missing, out of order or short: a table that was
    cut is no smaller machine.
    """
    if len(set(names)) < len(names):
        raise SpecError(f"{where}: a column is named twice: {' '.join(names)}")
    rows = []
    for (number, line), name in zip(lines, names, strict=False):
        first, *cells = line.split() or [""]
        if first != name or len(cells) < len(names):
            what = f"{len(cells)} cells" if first == name else f"the row of {first or 'nothing'!s}"
            raise SpecError(f"{where}: line {number}: {what} where the row of {name} with {len(names)} cells is right")
        rows.append(cells[: len(names)])
    if len(rows) < len(names):
        raise SpecError(f"{where}: {len(rows)} rows and {len(names)} columns; as many are right; the file may be cut")
    return rows


def check_symmetric(rows: Sequence[Sequence[str]], names: Sequence[str], where: str) -> None:
    """SpecError with the first pair whose two cells differ."""
    for i, row in enumerate(rows):
        for j in range(i):
            if row[j] != rows[j][i]:
                pair = f"{names[j]} to {names[i]} is {rows[j][i]} and back {row[j]}"
                raise SpecError(f"{where}: {pair}; the same is right")


def behind_switch(gpus: int, counts: dict[tuple[int, int], int], most: int) -> bool:
    """Whether every pair has the same number of cables and a GPU cannot have as many: (gpus - 1) * count > `most`.

    Then a pair's cables are those to a switch, shared by all pairs. `counts` by pair, the lower GPU first.
    """
    every = gpus * (gpus - 1) // 2
    return 0 < every == len(counts) and len(set(counts.values())) == 1 and (gpus - 1) * min(counts.values()) > most
