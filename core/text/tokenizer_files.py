"""The tokenizer files of a checkpoint folder, read and checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import attrs
import tokenizers

from ..errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


@attrs.frozen
class TokenizerFiles:
    """Contents of one checkpoint's tokenizer files.

    Attributes:
        backend: The tokenizer of tokenizer.json, without truncation and padding.
        named_tokens: Texts of the named tokens, such as `bos_token`.
        templates: Chat templates by name; `default` unless the checkpoint names several.
    """

    backend: tokenizers.Tokenizer
    named_tokens: Mapping[str, str]
    templates: Mapping[str, str]


def read_tokenizer_files(path: Path) -> TokenizerFiles:
    """Read tokenizer.json and its optional companion files.

    Raises:
        CheckpointError: tokenizer.json is missing, or a file is malformed.
    """
    config = _read_object(path / "tokenizer_config.json")
    special = _read_object(path / "special_tokens_map.json")
    return TokenizerFiles(
        backend=_read_backend(path / "tokenizer.json"),
        named_tokens={**_named_tokens(special), **_named_tokens(config)},
        templates=_read_templates(path / "chat_template.jinja", config.get("chat_template")),
    )


def token_ids(source: Mapping[str, Any], key: str, file: str) -> frozenset[int]:
    """Return the ids at `key`: a single id, a list of ids, or none.

    Raises:
        CheckpointError: The value is neither an id, nor a list of ids, nor null.
    """
    value = source.get(key)
    if value is None:
        return frozenset()
    ids = cast("list[object]", value if isinstance(value, list) else [value])
    if not all(type(i) is int and i >= 0 for i in ids):
        raise CheckpointError(f"{file}: {key} must be token ids, got {value!r}")
    return frozenset(cast("list[int]", ids))


def _read_backend(file: Path) -> tokenizers.Tokenizer:
    text = _read_text(file)
    if text is None:
        raise CheckpointError(f"{file}: missing; a checkpoint needs its tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"{file}: not a tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_text(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error


def _read_object(file: Path) -> Mapping[str, Any]:
    text = _read_text(file)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: must hold a JSON object")
    return cast("dict[str, Any]", value)


def _named_tokens(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of `*_token` keys, given as strings or as objects."""
    named: dict[str, str] = {}
    for key, value in source.items():
        text = value.get("content") if isinstance(value, dict) else value
        if key.endswith("_token") and isinstance(text, str):
            named[key] = text
    return named


def _read_templates(file: Path, configured: object) -> Mapping[str, str]:
    """Return the templates; chat_template.jinja wins over tokenizer_config.json."""
    source = _read_text(file)
    if source is None:
        source = configured
    if source is None:
        return {}
    if isinstance(source, str):
        return {DEFAULT_TEMPLATE: source}
    try:
        return {
            str(t["name"]): str(t["template"]) for t in cast("list[dict[str, str]]", source)
        }
    except (TypeError, KeyError) as error:
        raise CheckpointError(
            "tokenizer_config.json: chat_template must be a string or a list of objects "
            "with name and template"
        ) from error
