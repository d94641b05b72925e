"""From a user's source to a path: a directory, a GGUF file, or a hub repository's copy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import attrs

from ..arguments import path as path_argument
from ..errors import CheckpointError, CheckpointNotFoundError
from ..log import get_logger
from . import hub
from .shard_index import read_index

_REPO = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?::([^:\\]+\.gguf))?", re.ASCII)

_MAX_SHOWN = 5

_log = get_logger("checkpoint")


@attrs.frozen
class RepoId:
    """A hub repository, or one GGUF file of it.

    Attributes:
        repo: `org/name`.
        file: Path of the file in the repository; None for the whole repository.
    """

    repo: str
    file: str | None


def parse_repo_id(source: str) -> RepoId | None:
    """Return the repository that `source` names; None if `source` has another form."""
    match = _REPO.fullmatch(source)
    if match is None:
        return None
    repo, file = match.groups()
    outside = file is not None and ".." in file.split("/")
    if outside or repo.endswith(".gguf") or not hub.is_repo_id(repo):
        return None
    return RepoId(repo, file)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MAX_SHOWN
    return f"{', '.join(names[:_MAX_SHOWN])}{f' and {more} more' if more > 0 else ''}"


def _missing_part(directory: Path) -> str | None:
    """Return the part of a checkpoint that a directory lacks; None if it is complete."""
    if not (directory / "config.json").is_file():
        return "there is no config.json"
    index = read_index(directory)
    if index is not None:
        absent = sorted(name for name in index if not (directory / name).is_file())
        return f"weight files are missing: {_some(absent)}" if absent else None
    if not any(path.is_file() for path in directory.glob("*.safetensors")):
        return "there are no weights (*.safetensors)"
    return None


def _check_directory(directory: Path, hint: str) -> None:
    missing = _missing_part(directory)
    if missing is None:
        return
    files = sorted(path.name for path in directory.glob("*.gguf"))
    choice = f"; to open a GGUF file, name it: {hint}{files[0]}" if files else ""
    raise CheckpointError(f"{directory}: no checkpoint, {missing}{choice}")


def _resolve_local(path: Path) -> Path:
    if path.is_dir():
        _check_directory(path, f"{path}/")
    elif path.suffix != ".gguf":
        raise CheckpointError(f"{path}: is neither a directory nor a .gguf file")
    return path


def _resolve_file(repo: str, file: str, revision: str | None, *, progress: bool) -> Path:
    cached = hub.cached_file(repo, file, revision)
    return cached or hub.download_file(repo, file, revision, progress=progress)


def _resolve_snapshot(repo: str, revision: str | None, *, progress: bool) -> Path:
    cached = hub.cached_snapshot(repo, revision)
    if cached is not None and _missing_part(cached) is None:
        return cached
    path = hub.download_snapshot(repo, revision, progress=progress)
    missing = _missing_part(path)
    if missing is not None:
        raise CheckpointError(
            f"{repo}: no checkpoint, {missing}; to open a GGUF file of a repository, "
            f"name it: {repo}:FILE.gguf"
        )
    return path


def _resolve_repo(repo_id: RepoId, revision: str | None, *, progress: bool) -> Path:
    if repo_id.file is None:
        return _resolve_snapshot(repo_id.repo, revision, progress=progress)
    return _resolve_file(repo_id.repo, repo_id.file, revision, progress=progress)


def _local_path(source: Path, revision: str | None) -> Path | None:
    path = source.expanduser()
    if not path.exists():
        return None
    if revision is not None:
        raise CheckpointError(f"{path}: a revision belongs to a hub repository, not to a path")
    return _resolve_local(path)


def resolve_checkpoint(
    source: str | Path, *, revision: str | None = None, progress: bool = True
) -> Path:
    """Return the directory or GGUF file that `source` names, after a download if needed.

    A complete copy in the hub's cache is used without a request to the hub, even if the branch
    has moved on.

    Args:
        source: A checkpoint directory, a .gguf file, or, as a string, a hub repository:
            `org/name`, or `org/name:file.gguf` for one GGUF file of it.
        revision: Branch, tag or commit of the repository; None means its main branch.
        progress: Show progress bars while downloading.

    Raises:
        RequestError: The source cannot be a path.
        CheckpointNotFoundError: No such path or repository exists, the repository is not
            readable, or the network is down and no complete copy exists.
        CheckpointError: The source is no checkpoint, or the download failed.
    """
    given = path_argument("source", source)
    path = _local_path(given, revision)
    if path is not None:
        return path
    repo_id = parse_repo_id(source) if isinstance(source, str) else None
    if repo_id is None:
        raise CheckpointNotFoundError(
            f"{source}: no such file or directory, and no hub repository "
            "(org/name or org/name:file.gguf)"
        )
    try:
        path = _resolve_repo(repo_id, revision, progress=progress)
    except CheckpointNotFoundError as error:
        # a user who mistyped a folder should read of the folder first
        raise CheckpointNotFoundError(
            f"{source}: no such file or directory; as a repository of the hub: "
            f"{str(error).removeprefix(f'{source}: ')}"
        ) from error
    _log.info("checkpoint.file.resolved", source=source, path=str(path))
    return path
