"""The safetensors files of a checkpoint, and the tensors that the index lists for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .strict_json import JSONError, parse_object

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


def _parse_weight_map(index: Path) -> Mapping[str, str]:
    try:
        weight_map: Any = parse_object(index.read_bytes()).get("weight_map")
    except JSONError as error:
        raise CheckpointError(f"{index}: {error}") from error
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map must be an object of tensor -> file")
    for tensor, file in weight_map.items():
        # NOTE: a name with a folder could lead outside the directory
        if not isinstance(file, str) or Path(file).name != file or "\\" in file:
            raise CheckpointError(f"{index}: tensor {tensor!r}: {file!r} is no plain file name")
    return weight_map


def read_index(directory: Path) -> dict[str, frozenset[str]] | None:
    """Return file name -> tensors from the checkpoint's index; None without an index.

    Raises:
        CheckpointError: The index is malformed.
    """
    index = directory / INDEX_NAME
    if not index.is_file():
        return None
    files: defaultdict[str, set[str]] = defaultdict(set)
    for tensor, file in _parse_weight_map(index).items():
        files[file].add(tensor)
    return {file: frozenset(tensors) for file, tensors in files.items()}


def _names(paths: set[str]) -> str:
    return ", ".join(sorted(paths))


def _check_indexed(directory: Path, index: Mapping[str, frozenset[str]]) -> None:
    missing = {name for name in index if not (directory / name).is_file()}
    if missing:
        raise CheckpointError(
            f"{directory}: {INDEX_NAME} lists files that are missing: {_names(missing)}"
        )
    stray = {path.name for path in directory.glob("model*.safetensors")} - set(index)
    if stray:
        raise CheckpointError(
            f"{directory}: {INDEX_NAME} does not list {_names(stray)}: remove files of other "
            "checkpoints, or add this checkpoint's own index"
        )


def _find_single(directory: Path) -> Path:
    found = {path.name for path in directory.glob("model*.safetensors")}
    found = found or {path.name for path in directory.glob("*.safetensors")}
    if not found:
        raise CheckpointError(f"{directory}: there is no {SINGLE_NAME} and no {INDEX_NAME}")
    if len(found) > 1:
        raise CheckpointError(
            f"{directory}: several weight files ({_names(found)}) need a {INDEX_NAME} "
            "with the file of each tensor"
        )
    return directory / found.pop()


def find_shards(directory: Path) -> dict[Path, frozenset[str] | None]:
    """Return each weight file with its tensors in the index.

    The value is None where no index exists.

    Raises:
        CheckpointError: A file is missing, stray, or one of several without an index.
    """
    index = read_index(directory)
    if index is None:
        return {_find_single(directory): None}
    _check_indexed(directory, index)
    return {directory / name: index[name] for name in sorted(index)}
