"""The byte-level BPE tokenizer that all checkpoints share."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
)
VOCAB_SIZE = 4096
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]  # shown when decoded
ADDED_TOKENS = [*CONTROL_TOKENS, *MARKUP_TOKENS]
SPECIAL_ROLES = {
    "eos_token": "<|im_end|>",
    "pad_token": "<|endoftext|>",
    "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
}
# One digit a token; otherwise words with the space before them.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str], folder: Path) -> Tokenizer:
    """Train on `texts`, write the tokenizer's four files to `folder`, and return it."""
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=ADDED_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=2,
    )
    added = re.compile("|".join(map(re.escape, ADDED_TOKENS)))
    tokenizer.train_from_iterator((added.sub("", text) for text in texts), trainer)
    _write(tokenizer, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def _untrained() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _write(tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    template = TEMPLATE.read_text(encoding="utf-8").rstrip("\n")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(folder / "tokenizer.json", _with_visible_markup(tokenizer), indent=None)
    _write_json(folder / "tokenizer_config.json", _config(template))
    _write_json(folder / "special_tokens_map.json", SPECIAL_ROLES)


def _with_visible_markup(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokenizer.json with the markup tokens no longer special."""
    content = json.loads(tokenizer.to_str())
    for token in content["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
        token["normalized"] = False
    return content


def _config(template: str) -> dict[str, Any]:
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): _added(text) for i, text in enumerate(ADDED_TOKENS)},
        "additional_special_tokens": SPECIAL_ROLES["additional_special_tokens"],
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": SPECIAL_ROLES["eos_token"],
        "errors": "replace",
        "model_max_length": 2048,
        "pad_token": SPECIAL_ROLES["pad_token"],
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def _added(text: str) -> dict[str, Any]:
    return {
        "content": text,
        "lstrip": False,
        "normalized": False,
        "rstrip": False,
        "single_word": False,
        "special": text in CONTROL_TOKENS,
    }


def _write_json(path: Path, content: Any, indent: int | None = 2) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
