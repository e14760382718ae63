"""Models, clusters and calibrations by name or by file."""

from __future__ import annotations

import difflib
import os
from importlib import resources
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import structs

from moeplan.errors import SpecError
from moeplan.spec.calibration import Calibration, check_calibration
from moeplan.spec.cluster import ClusterSpec, check_cluster
from moeplan.spec.given import of_type, path_of
from moeplan.spec.huggingface import read_config
from moeplan.spec.model import ModelSpec, check_model
from moeplan.spec.record import convert, read_toml, validated

T = TypeVar("T")
Kind = Literal["model", "cluster", "calibration"]
_FOLDERS: dict[Kind, str] = {"model": "models", "cluster": "topologies", "calibration": "calibrations"}


def shipped(kind: Kind) -> tuple[str, ...]:
    """The names that come with moeplan, sorted."""
    return tuple(sorted(_files(kind)))


def load_model(text: str | Path) -> ModelSpec:
    """The model that `text` names: a shipped one, a TOML file, or a HuggingFace config.json or its folder.

    A shipped name wins over a file. SpecError says what is wrong in the file, or lists the shipped names.
    """
    text = _text(text, "model")
    if text not in _files("model") and (text.endswith(".json") or os.path.isdir(text)):
        return _known(read_config(Path(text)))
    return check_model(_load(text, "model", ModelSpec))


def _known(model: ModelSpec) -> ModelSpec:
    """`model` under its shipped name, where it is a shipped one in all but name: then both give the same plan.

    How a checkpoint stores its weights is no part of that.
    """
    for name in _files("model"):
        known = structs.replace(load_model(name), checkpoint=model.checkpoint)
        if structs.replace(model, name=known.name) == known:
            return known
    return model


def load_cluster(text: str | Path) -> ClusterSpec:
    """The cluster that `text` names: a shipped one or a TOML file; SpecError as `load_model`."""
    return check_cluster(_load(_text(text, "cluster"), "cluster", ClusterSpec))


def cluster_of(given: ClusterSpec | str | Path) -> ClusterSpec:
    """`given`, or the cluster that it names; SpecError as `load_cluster`."""
    if isinstance(given, str | Path):
        return load_cluster(given)
    return of_type(given, ClusterSpec, "cluster", right="a ClusterSpec, as load_cluster(...) gives, or its name")


def load_calibration(text: str | Path) -> Calibration:
    """The calibration that `text` names: a shipped one or a TOML file; SpecError as `load_model`."""
    return check_calibration(_load(_text(text, "calibration"), "calibration", Calibration))


def calibration_of(given: Calibration | str | Path) -> Calibration:
    """`given`, or the calibration that it names; SpecError where it breaks the rules of a file."""
    if isinstance(given, str | Path):
        return load_calibration(given)
    kind = of_type(
        given, Calibration, "calibration", right="a Calibration, as load_calibration(...) gives, or its name"
    )
    return check_calibration(validated(kind, "calibration"))


def _text(given: object, kind: Kind) -> str:
    """What names something: text or a path; SpecError for anything else."""
    return str(path_of(given, kind)) if not isinstance(given, str) else given


def calibration_file(text: str | Path) -> Path:
    """The file that `load_calibration` reads."""
    return _files("calibration").get(str(text), Path(text))


def _load(text: str, kind: Kind, record: type[T]) -> T:
    files = _files(kind)
    if text not in files and not text.endswith(".toml"):
        close = difflib.get_close_matches(text.lower(), files, n=1)
        beside = ", a config.json or its folder" if kind == "model" else ""
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise SpecError(
            f"no {kind} {text!r}{hint} (shipped: {', '.join(sorted(files))}; or a path to a .toml file{beside})"
        )
    path = files.get(text, Path(text))
    return convert(read_toml(path), record, where=str(path))


def _files(kind: Kind) -> dict[str, Path]:
    """Shipped files by name. A wheel has `topologies` inside the package, a source checkout has it beside."""
    package = Path(str(resources.files("moeplan.spec"))).parent
    folder = package / _FOLDERS[kind]
    if not folder.is_dir():
        folder = package.parent / _FOLDERS[kind]
    return {file.stem: file for file in folder.glob("*.toml")}
