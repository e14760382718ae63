"""Names that publications use, resolved to models and machines: `kind,name,target,overrides[,note]`.

`target` is a shipped name, a file beside the table, or another name of the table; `overrides` are settings as in
`--set`, separated by `;`, whose leading `model.` or `cluster.` may be left out. Without a target the name is known to
be something that cannot be planned, and `note` says why.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from msgspec import structs

from moeplan.cost.durations import Machine
from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration
from moeplan.spec.case import Case
from moeplan.spec.cluster import ClusterSpec, check_cluster, sized
from moeplan.spec.model import ModelSpec
from moeplan.spec.override import override
from moeplan.spec.record import Record
from moeplan.spec.shipped import load_calibration, load_cluster, load_model, shipped
from moeplan.spec.workload import Workload
from moeplan.topology.graph import build
from moeplan.topology.routes import Fabric
from moeplan.validation.outcome import Skip, plainly, reason
from moeplan.validation.tables import Text, numbered_rows

PUBLISHED = Path(str(resources.files("moeplan"))) / "published"
"""The tables that ship, with their sources."""


Kind: TypeAlias = Literal["model", "hardware"]
LONGEST_CIRCLE = 6
"""Names of a circle that an error lists."""


class Name(Record):
    """One line of a table of names."""

    kind: Kind
    name: Text
    target: str = ""
    overrides: str = ""
    note: str = ""


class _Entry(NamedTuple):
    name: Name
    file: Path
    line: int

    @property
    def place(self) -> str:
        """Where an error is."""
        return f"{self.file} line {self.line}: {self.name.kind} {self.name.name!r}"


class Names:
    """What names mean; every name is resolved once, and every machine's routes are searched once."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Names from `files`; of a name that several have, the last file's meaning is taken."""
        self._entries = {
            (name.kind, name.name): _Entry(name, file, line)
            for file in files
            for line, name in numbered_rows(file, Name, key=("kind", "name"))
        }
        self._cases: dict[tuple[Kind, str], Case] = {}
        self._machines: dict[tuple[str, int], Machine] = {}
        self._calibrations: dict[str, Calibration] = {}
        self._sized: dict[tuple[str, int], ClusterSpec] = {}

    def model(self, text: str) -> ModelSpec:
        """The model called `text`; Skip where it cannot be planned, SpecError where nobody says what it is."""
        return self._case("model", text).model

    def cluster(self, text: str) -> ClusterSpec:
        """The machine called `text`, as large as its file says; Skip and SpecError as `model`."""
        return self._case("hardware", text).cluster

    def part(self, text: str, gpus: int) -> ClusterSpec:
        """`gpus` GPUs of the machine called `text`: whole nodes, as many as needed, or a part of one node.

        Skip where they are neither.
        """
        key = (text, gpus)
        if key not in self._sized:
            self._sized[key] = _sized(self.cluster(text), gpus)
        return self._sized[key]

    def machine(self, text: str, gpus: int) -> Machine:
        """Routes of `part` and the efficiencies that its cluster names."""
        cluster = self.part(text, gpus)
        key = (text, gpus)
        if key not in self._machines:
            self._machines[key] = Machine(Fabric(build(cluster)), self.calibration(text))
        return self._machines[key]

    def calibration(self, text: str) -> Calibration:
        """The efficiencies that the machine called `text` names."""
        name = self.cluster(text).calibration
        if name not in self._calibrations:
            self._calibrations[name] = load_calibration(name)
        return self._calibrations[name]

    def _case(self, kind: Kind, text: str) -> Case:
        """A case whose model or cluster is what `text` means; the other is any."""
        if (kind, text) not in self._cases:
            chain = self._chain(kind, text)
            case = self._end(kind, text, chain)
            for entry in reversed(chain):
                case = self._cases[kind, entry.name.name] = _overridden(case, entry)
            self._cases[kind, text] = case
        return self._cases[kind, text]

    def _chain(self, kind: Kind, text: str) -> list[_Entry]:
        """The entries that lead from `text` to what is no entry; SpecError where they come back to one of them."""
        chain: dict[str, _Entry] = {}
        entry = self._entries.get((kind, text))
        while entry is not None:
            chain[entry.name.name] = entry
            target = entry.name.target
            if target in chain and target != entry.name.name:
                circle = [*list(chain)[list(chain).index(target) :], target]
                told = circle if len(circle) <= LONGEST_CIRCLE else [*circle[: LONGEST_CIRCLE - 1], "...", target]
                raise SpecError(f"{entry.place}: {' -> '.join(told)} is a circle; a target is another name")
            entry = self._entries.get((kind, target)) if target != entry.name.name else None
        return list(chain.values())

    def _end(self, kind: Kind, text: str, chain: list[_Entry]) -> Case:
        """What the last entry of `chain` names, or `text` where there is none."""
        if not chain:
            return self._loaded(kind, text, text)
        last = chain[-1]
        if not last.name.target:
            raise Skip(
                f"{kind}: {last.name.note or 'it has no target'}",
                f"{kind}: {text!r}: {last.name.note or 'it has no target'}",
            )
        try:
            return self._loaded(kind, last.name.target, last.name.name, beside=last.file.parent)
        except SpecError as error:
            raise SpecError(f"{last.file} line {last.line}: {error}") from None

    def _loaded(self, kind: Kind, target: str, text: str, beside: Path | None = None) -> Case:
        """The shipped record or the file `target`, in the folder `beside` or here, which `text` means."""
        known: Literal["model", "cluster"] = "model" if kind == "model" else "cluster"
        if target not in shipped(known):
            places = [str(beside / target)] if beside else []
            found = next((place for place in (*places, target) if os.path.exists(place)), None)
            if found is None:
                listed = (
                    f"; a target is a {known} that ships, a file, or another name of the table"
                    if beside
                    else "; list it in a file for --names, with the columns kind,name,target,overrides:"
                    f' {kind},"{text}",{_EXAMPLES[kind]}'
                )
                raise SpecError(f"{kind} {text!r}: {target!r} is neither a shipped {known} nor a file{listed}")
            target = found
        if kind == "model":
            return structs.replace(self._any, model=load_model(target))
        return structs.replace(self._any, cluster=load_cluster(target))

    @cached_property
    def _any(self) -> Case:
        return Case(
            model=load_model("tiny-moe"), cluster=load_cluster("laptop"), workload=Workload(seq_len=1, global_batch=1)
        )


_EXAMPLES = {"model": 'mixtral-8x7b,"num_layers=4"', "hardware": 'dgx-h100,"node.nic=200 Gbit/s"'}


def _overridden(case: Case, entry: _Entry) -> Case:
    """`case` with the entry's overrides; SpecError with its file and line."""
    prefix = "model." if entry.name.kind == "model" else "cluster."
    parts = [part.strip() for part in entry.name.overrides.split(";") if part.strip()]
    try:
        return override(case, [p if p.startswith(prefix) else prefix + p for p in parts]) if parts else case
    except SpecError as error:
        raise SpecError(f"{entry.place}: {error}") from None


def _sized(cluster: ClusterSpec, gpus: int) -> ClusterSpec:
    per_node = cluster.node.gpus
    if gpus > per_node and gpus % per_node:
        raise Skip(
            f"hardware: GPUs are not whole nodes of {per_node}", f"gpus: {gpus} are not whole nodes of {per_node} GPUs"
        )
    try:
        return check_cluster(sized(cluster, gpus))
    except SpecError as error:
        raise Skip(f"hardware: {reason(error)}", f"hardware: {plainly(error)}") from None
