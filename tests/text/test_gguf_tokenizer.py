from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from neve.errors import CheckpointError, UnsupportedModelError
from neve.text.gguf_tokenizer import gguf_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neve.text.tokenizer import Tokenizer

ROCKETEER = "👩\U0001f3fd\u200d🚀"
SAMPLES = [
    "The quick brown fox jumps over the lazy dog.",
    "It's 12345 o'clock, isn't it?  Two  spaces\n\n\tand a tab\r\n",
    f"¿Qué? 日本語 {ROCKETEER} e\u0301",
    "def f(x):\n    return x ** 2  # ok\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    " leading and trailing ",
]
# One line a sample, from the GGUF reader of transformers 5.24, for the same file.
REFERENCE_IDS = """
504 2365 6354 16438 27003 690 260 23790 2767 30
1589 506 216 33 34 35 36 37 263 23 17466 28 3247 982 357 47 216 5713 216 5600 1116 197 397 253 10147 2738
47416 6317 2756 47 17097 241 115 40993 179 120 248 15107 235 119 10813 233 138 321 231 10813 244 218 297 151 219
1604 275 24 104 727 472 1003 1792 1903 216 34 216 907 10907 198
1 4093 198 6004 2 198
2899 284 35079 216
"""  # noqa: E501  # a line a sample


@pytest.fixture(scope="module")
def smollm(smollm_metadata: Mapping[str, Any]) -> Tokenizer:
    return gguf_tokenizer(smollm_metadata)


def test_facts_of_a_real_file(smollm: Tokenizer):
    """FW-7: the SmolLM2 file gives vocabulary, special tokens and a chat template."""
    assert smollm.vocab_size == 49152
    assert smollm.bos_token_id == 1
    assert smollm.eos_token_ids == {2}
    assert smollm.special_token_ids == set(range(17))
    assert smollm.has_chat_template
    assert smollm.encode("<|im_start|>") == [1]
    assert [smollm.decode([i]) for i in smollm.encode("2048")] == ["2", "0", "4", "8"]


@pytest.mark.parametrize("text", SAMPLES)
def test_round_trip(smollm: Tokenizer, text: str):
    """FW-7: text survives the way to ids and back."""
    assert smollm.decode(smollm.encode(text), skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("text", "ids"), list(zip(SAMPLES, REFERENCE_IDS.strip().splitlines(), strict=True))
)
def test_reference_ids(smollm: Tokenizer, text: str, ids: str):
    """FW-7: the ids are those of another reader of the same file."""
    assert smollm.encode(text) == [int(i) for i in ids.split()]


def test_chat_template(smollm: Tokenizer):
    """FW-7: messages are rendered by the template of the file."""
    ids = smollm.encode_messages([{"role": "user", "content": "hi"}])
    text = smollm.decode(ids, skip_special_tokens=False)

    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def byte_level(pre: str | None = None, **more: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary over a few letters and digits."""
    tokens = ["<s>", "</s>", "<eot>", "<tag>", *"abc123'sĠĊ", "12", "123", "ab", "abc", "Ġa"]
    merges = ["1 2", "12 3", "a b", "Ġ a"]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def pieces(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        (None, ["123", "123"]),
        ("default", ["123", "123"]),
        ("gpt-2", ["123", "123"]),
        ("smollm", ["1", "2", "3", "1", "2", "3"]),
        ("qwen2", ["1", "2", "3", "1", "2", "3"]),
        ("llama-bpe", ["<s>", "123", "123"]),
    ],
)
def test_words(pre: str | None, expected: list[str]):
    """Each way to cut words treats digits in its own way; only llama-bpe begins with BOS."""
    assert pieces(gguf_tokenizer(byte_level(pre)), "123123") == expected


def test_llama_takes_whole_words():
    """A word that is a token needs no merges in llama-bpe vocabularies."""
    assert pieces(gguf_tokenizer(byte_level("llama-bpe")), "abc")[1:] == ["abc"]
    assert pieces(gguf_tokenizer(byte_level("gpt-2")), "abc") == ["ab", "c"]


def test_added_tokens():
    """Control tokens are special; user-defined ones are found in the text but shown."""
    tokenizer = gguf_tokenizer(byte_level())
    ids = tokenizer.encode("a<tag></s>")

    assert ids[1:] == [3, 1]
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.decode(ids) == "a<tag>"


def test_eos_and_bos():
    """Both EOS and EOT end an answer; the file's word on BOS goes before the default."""
    tokenizer = gguf_tokenizer(byte_level(add_bos_token=True))

    assert tokenizer.eos_token_ids == {1, 2}
    assert tokenizer.encode("<s>a") == tokenizer.encode("a")
    assert tokenizer.encode("a")[0] == 0
    assert gguf_tokenizer(byte_level("llama-bpe", add_bos_token=False)).encode("a")[0] != 0


def test_sentencepiece_ids(sentencepiece_tokenizer: Tokenizer):
    """A sentencepiece vocabulary begins with BOS and a space, and falls back to bytes."""
    assert pieces(sentencepiece_tokenizer, "hi ab") == ["<s>", "▁hi", "▁ab"]
    assert pieces(sentencepiece_tokenizer, "é") == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert sentencepiece_tokenizer.decode(sentencepiece_tokenizer.encode(" hi é")) == " hi é"
    assert len(sentencepiece_tokenizer.byte_token_ids) == 256


def test_no_space_prefix(sentencepiece_metadata: Mapping[str, Any]):
    """A file may say that no space is put before a text."""
    tokenizer = gguf_tokenizer(
        {**sentencepiece_metadata, "tokenizer.ggml.add_space_prefix": False}
    )

    assert pieces(tokenizer, "ab hi") == ["<s>", "ab", "▁hi"]
    assert tokenizer.decode(tokenizer.encode(" hi")) == " hi"


def sentencepiece_model(texts: list[str]) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def piece_type(model: Any, i: int) -> int:
    if model.is_unknown(i):
        return 2
    if model.is_control(i):
        return 3
    return 6 if model.is_byte(i) else 1


def test_same_as_sentencepiece():
    """Merges recovered from scores give the ids of sentencepiece itself."""
    model = sentencepiece_model([line for text in SAMPLES for line in text.split("\n")] * 5)
    ids = range(model.get_piece_size())
    tokenizer = gguf_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
            "tokenizer.ggml.scores": [model.get_score(i) for i in ids],
            "tokenizer.ggml.token_type": [piece_type(model, i) for i in ids],
            "tokenizer.ggml.unknown_token_id": model.unk_id(),
            "tokenizer.ggml.bos_token_id": model.bos_id(),
            "tokenizer.ggml.eos_token_id": model.eos_id(),
        }
    )
    for text in [*SAMPLES, "the brown clock and the lazy tab return", "unseen: ß Ω 漢字"]:
        assert tokenizer.encode(text)[1:] == model.encode(text), text
        assert tokenizer.decode(model.encode(text)) == model.decode(model.encode(text))


@pytest.mark.parametrize("model", ["bert", "rwkv", "t5", "gemma4"])
def test_other_vocabularies(model: str):
    """A vocabulary of another kind is a typed error that names the known ones."""
    with pytest.raises(UnsupportedModelError, match="'gpt2' and 'llama'"):
        gguf_tokenizer({**byte_level(), "tokenizer.ggml.model": model})


def test_other_words():
    """So is another way to cut words."""
    with pytest.raises(UnsupportedModelError, match=r"'tekken'.*smollm"):
        gguf_tokenizer(byte_level("tekken"))


@pytest.mark.parametrize("key", ["model", "tokens", "token_type", "merges"])
def test_missing_keys(key: str):
    """A missing key is named."""
    metadata = byte_level()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{key} is missing"):
        gguf_tokenizer(metadata)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"tokens": "abc"}, "tokens must be a list"),
        ({"token_type": [1]}, "token_type has 1 entries"),
        ({"merges": ["1 x"]}, "does not fit together"),
        ({"merges": ["12"]}, "does not fit together"),
        ({"eos_token_id": 99}, "eos_token_id is beyond"),
        ({"bos_token_id": "0"}, "bos_token_id must be"),
    ],
)
def test_malformed_values(values: dict[str, Any], reason: str):
    """Values that do not fit are typed errors."""
    with pytest.raises(CheckpointError, match=reason):
        gguf_tokenizer(byte_level(**values))
