"""Conversion of text and messages to token ids, and of ids to text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, RequestError
from .chat_template import ChatTemplate
from .completeness import check_complete
from .messages import check_messages, check_tools
from .text_guard import TextGuard
from .tokenizer_files import DEFAULT_TEMPLATE, TOOL_TEMPLATE, read_tokenizer_files, token_ids

if TYPE_CHECKING:
    from pathlib import Path

    import tokenizers

Messages = Sequence[Mapping[str, Any]]


class Tokenizer:
    """A checkpoint's tokenizer with its chat templates.

    Threads may share a tokenizer.

    Attributes:
        vocab_size: Number of ids that the tokenizer knows, added tokens included; the model's
            logits may be wider.
        bos_token_id: Id of the beginning-of-sequence token, or None.
        eos_token_ids: Ids that end an answer.
        special_token_ids: Ids that `decode` skips by default.
        byte_token_ids: Ids of single raw bytes, which decode to text only in runs of valid
            UTF-8; empty for byte-level vocabularies.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        named_tokens: Mapping[str, str],
        adds_bos: bool,
        eos_token_ids: frozenset[int],
        templates: Mapping[str, str],
    ) -> None:
        self._backend = backend
        self._guard = TextGuard(backend)
        self._named_tokens = dict(named_tokens)
        self._adds_bos = adds_bos
        self._templates = {n: ChatTemplate(t, named_tokens) for n, t in templates.items()}
        self.vocab_size = backend.get_vocab_size()
        self.bos_token_id = named_token_id(backend, named_tokens, "bos_token")
        self.eos_token_ids = eos_token_ids
        self.special_token_ids = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self.byte_token_ids = _byte_token_ids(backend)

    @classmethod
    def from_directory(
        cls, path: Path, *, config: Mapping[str, Any], generation_config: Mapping[str, Any]
    ) -> Tokenizer:
        """Read the tokenizer of a checkpoint folder.

        Args:
            path: The folder with tokenizer.json.
            config: The parsed config.json.
            generation_config: The parsed generation_config.json; empty without one.

        Raises:
            CheckpointError: A file is missing or malformed, or names a token that the
                vocabulary lacks.
        """
        files = read_tokenizer_files(path)
        eos = named_token_id(files.backend, files.named_tokens, "eos_token")
        bos = named_token_id(files.backend, files.named_tokens, "bos_token")
        return cls(
            files.backend,
            named_tokens=files.named_tokens,
            adds_bos=bos is not None and bos in files.backend.encode("").ids[:1],
            eos_token_ids=token_ids(generation_config, "eos_token_id", "generation_config.json")
            | token_ids(config, "eos_token_id", "config.json")
            | token_ids(config.get("text_config") or {}, "eos_token_id", "config.json")
            | frozenset(() if eos is None else (eos,)),
            templates=files.templates,
        )

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint has a template, so that messages can be encoded."""
        return bool(self._templates)

    def token_id(self, text: str) -> int | None:
        """Return the id of the token with the text `text`, or None."""
        return self._backend.token_to_id(text)

    def token_text(self, token_id: int) -> str | None:
        """Return the vocabulary's text of `token_id`, or None for an unknown id."""
        return self._backend.id_to_token(token_id)

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; special tokens in the text are special.

        A tokenizer that begins every sequence with BOS adds BOS, unless the text begins so.

        Raises:
            RequestError: The text has lone surrogates, which UTF-8 cannot encode.
        """
        _require_utf8(text, "prompt")
        ids = self._backend.encode(text, add_special_tokens=False).ids
        if self._adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            return [self.bos_token_id, *ids]
        return ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; unknown ids are skipped, invalid bytes become U+FFFD."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def encode_messages(
        self,
        messages: Messages,
        *,
        tools: Messages | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the ids of a conversation, rendered by the checkpoint's template.

        Special tokens inside messages, tool definitions or template variables stay plain
        text, except in assistant messages: the model wrote these, and they must give the same
        ids again. Only the template adds BOS.

        Args:
            messages: Mappings with `role`, `content` and further keys for the template.
            tools: Tool definitions.
            add_generation_prompt: Whether the prompt ends by opening an assistant message.
            template_kwargs: Further template variables, such as `enable_thinking`.

        Raises:
            RequestError: The messages are malformed, the template refuses them or drops one
                of their texts, or the checkpoint has no template.
            CheckpointError: The sandbox stopped the template.
        """
        check_tools(tools)
        template = self._template_for(tools)
        check_messages(messages, template.roles)
        variables = template_kwargs or {}
        private = self._guard.private_character(
            [template.source, self._named_tokens, list(messages), tools, variables]
        )
        marked = [
            dict(m) if m["role"] == "assistant" else self._guard.mark(m, private)
            for m in messages
        ]
        render = partial(
            template.render,
            tools=self._guard.mark(tools, private),
            add_generation_prompt=add_generation_prompt,
            template_kwargs=self._guard.mark(variables, private),
        )
        rendered = render(marked)
        check_complete(marked, rendered, render)
        _require_utf8(rendered, "messages")
        return self._guard.encode(rendered, private)

    def _template_for(self, tools: Messages | None) -> ChatTemplate:
        if tools is not None and TOOL_TEMPLATE in self._templates:
            return self._templates[TOOL_TEMPLATE]
        if DEFAULT_TEMPLATE not in self._templates:
            raise RequestError(
                "the checkpoint has no chat template: give a text prompt instead",
                code="no_chat_template",
                param="messages",
            )
        return self._templates[DEFAULT_TEMPLATE]


def named_token_id(
    backend: tokenizers.Tokenizer, named_tokens: Mapping[str, str], name: str
) -> int | None:
    """Return the id of the token called `name`; None without such a token.

    Raises:
        CheckpointError: The vocabulary lacks the token.
    """
    if name not in named_tokens:
        return None
    token_id = backend.token_to_id(named_tokens[name])
    if token_id is None:
        raise CheckpointError(f"{name} is {named_tokens[name]!r}, which tokenizer.json lacks")
    return token_id


def _byte_token_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    """Return the ids of `<0x00>` … `<0xFF>` if the decoder turns them into bytes."""
    letter = backend.token_to_id("<0x41>")
    if letter is None or backend.decode([letter], skip_special_tokens=False) != "A":
        return frozenset()
    ids = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
    return frozenset(i for i in ids if i is not None)


def _require_utf8(text: str, param: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode at character {error.start}: lone surrogate",
            code="invalid_text",
            param=param,
        ) from error
