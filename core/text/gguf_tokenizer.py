"""The tokenizer of a GGUF file, built from the file's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ..errors import CheckpointError, UnsupportedModelError
from .tokenizer import Tokenizer
from .tokenizer_files import DEFAULT_TEMPLATE, token_ids

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PREFIX = "tokenizer.ggml."
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
_SPACE = "▁"  # sentencepiece's sign for a space

# Regular expressions that split text into words, by `tokenizer.ggml.pre`.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = {
    "llama-bpe": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
}
_GPT2_WORDS = frozenset({"default", "gpt-2", "smollm"})  # split by ByteLevel's own pattern

_NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def gguf_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer of a GGUF file.

    Args:
        metadata: Plain values by key: strings, integers, booleans, lists.

    Raises:
        CheckpointError: A key is missing or malformed.
        UnsupportedModelError: The vocabulary's kind, or its word splitting, is unknown to
            neve.
    """
    facts = _Facts(metadata)
    backend = _build_backend(facts)
    backend.add_tokens(facts.added_tokens())
    template = metadata.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        named_tokens=facts.named_tokens(),
        adds_bos=facts.adds_bos(),
        eos_token_ids=facts.ids("eos_token_id") | facts.ids("eot_token_id"),
        templates={} if template is None else {DEFAULT_TEMPLATE: str(template)},
    )


class _Facts:
    """The `tokenizer.ggml` keys, checked when they are read."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        self.model = str(self.get("model"))
        self.pre = str(self.get("pre", "default"))
        self.tokens = cast("Sequence[str]", self.items("tokens"))
        self.types = cast("Sequence[int]", self.per_token("token_type"))
        self.vocab = {token: i for i, token in enumerate(self.tokens)}

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value.

        Raises:
            CheckpointError: The key is missing and there is no default.
        """
        value = self._metadata.get(_PREFIX + key, default)
        if value is None:
            raise CheckpointError(f"{_PREFIX}{key} is missing from the GGUF metadata")
        return value

    def items(self, key: str) -> Sequence[Any]:
        """Return a list.

        Raises:
            CheckpointError: The key is missing or no list.
        """
        value = self.get(key)
        if not isinstance(value, list):
            raise CheckpointError(f"{_PREFIX}{key} must be a list, got {type(value).__name__}")
        return cast("list[Any]", value)

    def per_token(self, key: str) -> Sequence[Any]:
        """Return a list with one entry for each token.

        Raises:
            CheckpointError: The key is missing, or the list has another length.
        """
        values = self.items(key)
        if len(values) != len(self.tokens):
            raise CheckpointError(
                f"{_PREFIX}{key} has {len(values)} entries for {len(self.tokens)} tokens"
            )
        return values

    def ids(self, key: str) -> frozenset[int]:
        """Return the id at `key` as a set; empty if the file has none."""
        found = token_ids(self._metadata, _PREFIX + key, "GGUF metadata")
        if any(i >= len(self.tokens) for i in found):
            raise CheckpointError(f"{_PREFIX}{key} is beyond the {len(self.tokens)} tokens")
        return found

    def named_tokens(self) -> dict[str, str]:
        """Return the texts of the tokens that have a name, by name."""
        return {name: self.tokens[i] for name, key in _NAMED_IDS.items() for i in self.ids(key)}

    def added_tokens(self) -> list[AddedToken]:
        """Return the tokens that are matched in the text before words are split."""
        return [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]

    def adds_bos(self) -> bool:
        """Whether a sequence begins with BOS; the default depends on the vocabulary."""
        default = self.model == "llama" or self.pre == "llama-bpe"
        return bool(self.get("add_bos_token", default)) and bool(self.ids("bos_token_id"))


def _build_backend(facts: _Facts) -> tokenizers.Tokenizer:
    if facts.model == "gpt2":
        return _byte_level(facts)
    if facts.model == "llama":
        return _sentencepiece(facts)
    raise UnsupportedModelError(
        f"{_PREFIX}model is {facts.model!r}; neve knows 'gpt2' and 'llama'"
    )


def _byte_level(facts: _Facts) -> tokenizers.Tokenizer:
    """Build a BPE over bytes with the file's merges."""
    if facts.pre not in _GPT2_WORDS | _WORDS.keys():
        known = ", ".join(sorted(_GPT2_WORDS | _WORDS.keys()))
        raise UnsupportedModelError(f"{_PREFIX}pre is {facts.pre!r}; neve knows {known}")
    merges = [tuple(str(merge).split(" ", 1)) for merge in facts.items("merges")]
    whole_words = facts.pre == "llama-bpe"
    backend = _bpe(vocab=facts.vocab, merges=merges, ignore_merges=whole_words)
    if facts.pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _word_splitter(facts.pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _word_splitter(pre: str) -> Any:
    if pre in _WORDS:
        split = pre_tokenizers.Split(Regex(_WORDS[pre]), "isolated")
        return pre_tokenizers.Sequence([split, _to_bytes(use_regex=False)])
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, _to_bytes(use_regex=True)])
    return _to_bytes(use_regex=True)


def _to_bytes(*, use_regex: bool) -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _sentencepiece(facts: _Facts) -> tokenizers.Tokenizer:
    """Build a BPE over characters, with merges recovered from the pieces' scores."""
    unknown = [facts.tokens[i] for i in facts.ids("unknown_token_id")]
    backend = _bpe(
        vocab=facts.vocab,
        merges=_merges_by_score(facts),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    prefixed = bool(facts.get("add_space_prefix", True))
    to_sign = normalizers.Replace(" ", _SPACE)
    backend.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), to_sign]) if prefixed else to_sign
    )
    strip = [decoders.Strip(" ", 1, 0)] if prefixed else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return backend


def _merges_by_score(facts: _Facts) -> list[tuple[str, ...]]:
    """Return every split of every normal piece into two pieces, best piece first.

    Sentencepiece joins the neighbours whose joint piece has the highest score. All splits of
    a piece share its score, so their order does not matter.
    """
    scores = facts.per_token("scores")
    normal = [i for i, kind in enumerate(facts.types) if kind == _NORMAL]
    ranked = sorted(normal, key=lambda i: -float(scores[i]))
    return [
        (piece[:cut], piece[cut:])
        for piece in (facts.tokens[i] for i in ranked)
        for cut in range(1, len(piece))
        if piece[:cut] in facts.vocab and piece[cut:] in facts.vocab
    ]


def _bpe(**parts: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(**parts))
    except Exception as error:  # the library raises nothing more precise
        raise CheckpointError(f"the GGUF vocabulary does not fit together: {error}") from error
