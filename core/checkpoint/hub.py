"""Copies of hub repositories: from the hub's cache, or by download."""

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
"""Files that a model is loaded from."""

IGNORED = ("*/*", "consolidated*")
"""Folders, and second copies of the weights under the makers' own names."""

_REFUSALS = (401, 403)

# The root of the HTTP client's errors, whichever client the hub library is built on.
_TRANSPORT_ERROR: Any = HfHubHTTPError.__bases__[0]


class _NoBar(tqdm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def _bar(*, progress: bool) -> type[tqdm] | None:
    return None if progress else _NoBar


@contextmanager
def _explained(repo: str, revision: str | None) -> Generator[None]:
    """Turn the hub's errors into `CheckpointError`s that say what to do."""
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
        raise CheckpointError(f"{repo}: it has no revision {revision!r}") from error
    except LocalEntryNotFoundError as error:
        raise CheckpointNotFoundError(
            f"{repo}: the hub cannot be reached and the cache holds no complete copy: "
            "connect to the network, or give the path of a local directory"
        ) from error
    except EntryNotFoundError as error:
        raise CheckpointError(f"{repo}: it has no such file") from error
    except HfHubHTTPError as error:
        advice = f"; {login}" if error.response.status_code in _REFUSALS else ""
        raise CheckpointError(f"{repo}: the hub refused: {error}{advice}") from error
    except (OSError, _TRANSPORT_ERROR) as error:
        raise CheckpointError(f"{repo}: the download failed: {error}") from error


def is_repo_id(text: str) -> bool:
    """Return whether the hub could have a repository of this name."""
    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """Return the cache's copy of a repository, without a request; None if it has none.

    It is known to be complete only if a listing of the repository is cached beside it.
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
    """Download what is needed of a repository, and return the copy.

    Raises:
        CheckpointError: It does not exist, may not be read, or cannot be reached.
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
    """Return the cache's copy of one file, without a request; None if it has none."""
    try:
        return Path(hf_hub_download(repo, file, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def download_file(repo: str, file: str, revision: str | None, *, progress: bool) -> Path:
    """Download one file of a repository, and return the copy.

    Raises:
        CheckpointError: It does not exist, may not be read, or cannot be reached.
    """
    with _explained(f"{repo}:{file}", revision):
        return Path(
            hf_hub_download(repo, file, revision=revision, tqdm_class=_bar(progress=progress))
        )
