"""Local copies of hub repositories, from the hub's cache or by download."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm, validate_repo_id

from ..errors import CheckpointError, CheckpointNotFoundError

ALLOWED = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")
"""Patterns of the files that a model needs."""

IGNORED = ("*/*", "consolidated*")
"""Patterns of folders, and of second copies of the weights under other names."""

_REFUSALS = (401, 403)

# Root of the HTTP client's errors, for every client that the hub library may use.
_TRANSPORT_ERROR: Any = HfHubHTTPError.__bases__[0]


class _NoBar(tqdm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _bar(*, progress: bool) -> type[tqdm] | None:
    return None if progress else _NoBar


@contextmanager
def _explained(repo: str, revision: str | None) -> Generator[None]:
    """Turn the hub's errors into `CheckpointError`s with advice."""
    login = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{repo}: access is granted on request only: accept its conditions on the hub, "
            f"then {login}"
        ) from error
    except RepositoryNotFoundError as error:
        raise CheckpointNotFoundError(
            f"{repo}: the hub has no such repository, or it is private: check the name, "
            f"or {login}"
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repo}: there is no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointNotFoundError(
            f"{repo}: the hub cannot be reached and the cache holds no complete copy: "
            "connect to the network, or give the path of a local directory"
        ) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"{repo}: there is no such file") from error
    except HfHubHTTPError as error:
        advice = f"; {login}" if error.response.status_code in _REFUSALS else ""
        raise CheckpointError(f"{repo}: the hub refused: {error}{advice}") from error
    except (OSError, _TRANSPORT_ERROR) as error:
        raise CheckpointError(f"{repo}: the download failed: {error}") from error


def is_repo_id(text: str) -> bool:
    """Return whether `text` is a valid name of a hub repository."""
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """Return the cached copy of a repository, without a request; None without a copy.

    The copy may be incomplete, unless the cache also has a listing of the repository.
    """
    try:
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(ALLOWED),
                ignore_patterns=list(IGNORED),
                local_files_only=True,
            )
        )
    except LocalEntryNotFoundError:
        return None


def download_snapshot(repo: str, revision: str | None, *, progress: bool) -> Path:
    """Download the files that a model needs, and return the copy's folder.

    Raises:
        CheckpointError: The repository does not exist, is not readable, or not reachable.
    """
    with _explained(repo, revision):
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=list(ALLOWED),
                ignore_patterns=list(IGNORED),
                tqdm_class=_bar(progress=progress),
            )
        )


def cached_file(repo: str, file: str, revision: str | None) -> Path | None:
    """Return the cached copy of one file, without a request; None without a copy."""
    try:
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def download_file(repo: str, file: str, revision: str | None, *, progress: bool) -> Path:
    """Download one file of a repository, and return the copy's path.

    Raises:
        CheckpointError: The file does not exist, is not readable, or not reachable.
    """
    with _explained(f"{repo}:{file}", revision):
        return Path(
            hf_hub_download(repo, file, revision=revision, tqdm_class=_bar(progress=progress))
        )
