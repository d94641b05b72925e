from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from neve.text.detokenizer import Detokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable

    from neve.text.tokenizer import Tokenizer

ROCKETEER = "👩\U0001f3fd\u200d🚀"  # one sign of four characters
characters = st.characters(exclude_categories=["Cs"]) | st.sampled_from(
    [ROCKETEER, "e\u0301", "日本", " ", "\n"]
)
texts = st.lists(characters, max_size=40).map("".join)


def stream(tokenizer: Tokenizer, ids: Iterable[int], **options: Any) -> list[str]:
    detokenizer = Detokenizer(tokenizer, **options)
    return [*map(detokenizer.add, ids), detokenizer.finish()]


def ids_of_bytes(tokenizer: Tokenizer, data: bytes) -> list[int]:
    return [i for byte in data if (i := tokenizer.token_id(f"<0x{byte:02X}>")) is not None]


def test_no_half_characters(tiny: Tokenizer):
    """A character whose bytes lie in several tokens comes out whole, with its last one."""
    ids = tiny.encode("🚀")
    pieces = stream(tiny, ids)

    assert len(ids) > 1
    assert pieces == [*[""] * (len(ids) - 1), "🚀", ""]


def test_plain_text_is_not_delayed(tiny: Tokenizer):
    """Text of whole characters comes out with its token."""
    ids = tiny.encode("The cat sat on the mat.")

    assert stream(tiny, ids) == [*[tiny.decode([i]) for i in ids], ""]


def test_unfinished_character(tiny: Tokenizer):
    """Bytes that never become a character show as U+FFFD at the end, not before."""
    pieces = stream(tiny, tiny.encode("a🚀")[:-1])

    assert "".join(pieces[:-1]) == "a"
    assert pieces[-1] == "\ufffd"


def test_invalid_bytes_in_between(tiny: Tokenizer):
    """Bytes that cannot become a character show as U+FFFD as soon as text follows."""
    pieces = stream(tiny, [*tiny.encode("🚀")[:-1], *tiny.encode("a")])

    assert pieces[-2:] == ["\ufffda", ""]


def test_a_written_replacement_character(tiny: Tokenizer):
    """U+FFFD that stands in the text itself is kept."""
    assert "".join(stream(tiny, tiny.encode("a\ufffdb\ufffd"))) == "a\ufffdb\ufffd"


def test_special_tokens(tiny: Tokenizer):
    """Special tokens are left out by default, and shown on request; others are text."""
    ids = tiny.encode("<think>a<|im_end|>")

    assert "".join(stream(tiny, ids)) == "<think>a"
    assert "".join(stream(tiny, ids, skip_special_tokens=False)) == "<think>a<|im_end|>"


def test_unknown_ids(tiny: Tokenizer):
    """Ids beyond the vocabulary, as of padded logits, have no text."""
    assert "".join(stream(tiny, [tiny.vocab_size + 7, *tiny.encode("a")])) == "a"


def test_window_stays_short(tiny: Tokenizer):
    """The work of a token does not grow with the text, not even for endless invalid bytes."""
    detokenizer = Detokenizer(tiny)
    for token_id in tiny.encode("🚀")[:1] * 500:
        detokenizer.add(token_id)

    assert len(detokenizer._window) <= 17


def test_leading_space(sentencepiece_tokenizer: Tokenizer):
    """The space that a sentencepiece vocabulary puts before a text is taken off once."""
    ids = sentencepiece_tokenizer.encode("hi ab hi")[1:]

    assert stream(sentencepiece_tokenizer, ids) == ["hi", " ab", " hi", ""]


def test_byte_fallback(sentencepiece_tokenizer: Tokenizer):
    """Byte tokens are text once their run has ended; an invalid run is U+FFFD for each."""
    valid = ids_of_bytes(sentencepiece_tokenizer, "🚀".encode())
    pieces = stream(sentencepiece_tokenizer, [*valid, *sentencepiece_tokenizer.encode("!")[1:]])
    invalid = stream(sentencepiece_tokenizer, valid[:3])

    assert pieces[:4] == [""] * 4
    assert "".join(pieces) == "🚀 !"
    assert invalid == ["", "", "", "\ufffd\ufffd\ufffd"]


@given(text=texts)
def test_text_survives(tiny: Tokenizer, text: str):
    """The pieces of any text joined are what decoding all of it at once gives."""
    ids = tiny.encode(text)

    assert "".join(stream(tiny, ids)) == tiny.decode(ids)


@given(data=st.data())
def test_any_ids(tiny: Tokenizer, data: st.DataObject):
    """Nothing is lost or changed later, whatever the ids, with special tokens or without."""
    byte_like = list(range(7, 300))
    ids = data.draw(st.lists(st.integers(0, tiny.vocab_size) | st.sampled_from(byte_like)))
    skip = data.draw(st.booleans())
    pieces = stream(tiny, ids, skip_special_tokens=skip)

    assert "".join(pieces) == tiny.decode(ids, skip_special_tokens=skip)


@given(data=st.data())
def test_any_ids_with_byte_fallback(sentencepiece_tokenizer: Tokenizer, data: st.DataObject):
    """The same holds for a vocabulary with byte tokens and a leading space."""
    tokenizer = sentencepiece_tokenizer
    runs = st.sampled_from(["é", "日", "🚀", "a"]).map(
        lambda text: ids_of_bytes(tokenizer, text.encode())
    )
    single = st.integers(0, tokenizer.vocab_size).map(lambda i: [i])
    pieces_high = st.integers(259, tokenizer.vocab_size - 1).map(lambda i: [i])
    chunks = data.draw(st.lists(runs | single | pieces_high, max_size=40))
    ids = [i for chunk in chunks for i in chunk]

    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)
