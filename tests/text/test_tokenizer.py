from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import CheckpointError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from neve.text.tokenizer import Tokenizer

FAMILIES = [
    "gemma4",
    "gemma4_moe",
    "lfm2",
    "lfm2_moe",
    "muse_glimmer",
    "nemotron_h",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
]

BOS_FIRST = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {
        "<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    },
}


def golden_prompts(path: Path) -> list[dict[str, Any]]:
    return json.loads((path / "golden.json").read_text(encoding="utf-8"))["prompts"]


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_ids(
    family: str, checkpoints: Path, load_tokenizer: Callable[[Path], Tokenizer]
):
    """UX-1: prompts, messages, tools and thinking flags give the reference's ids."""
    tokenizer = load_tokenizer(checkpoints / family)
    prompts = golden_prompts(checkpoints / family)

    assert len(prompts) == 19
    assert tokenizer.eos_token_ids == {0, 2}
    for prompt in prompts:
        assert tokenizer.encode(prompt["text"]) == prompt["ids"], prompt["id"]
        if "messages" in prompt:
            ids = tokenizer.encode_messages(
                prompt["messages"],
                tools=prompt.get("tools"),
                template_kwargs=prompt.get("template"),
            )

            assert ids == prompt["ids"], prompt["id"]


def test_same_as_transformers(tiny: Tokenizer, checkpoints: Path):
    """UX-1: a conversation with every role has the ids of the reference implementation."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.AutoTokenizer.from_pretrained(checkpoints / "qwen3")
    tools = [{"type": "function", "function": {"name": "f", "description": "é <b> & 日"}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\u0301 日本 👩\U0001f3fd\u200d🚀"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": []},
        {"role": "tool", "content": "{}"},
        {"role": "user", "content": [{"type": "text", "text": "and?"}]},
    ]
    for add_generation_prompt in (True, False):
        expected = reference.apply_chat_template(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=True,
            return_dict=False,
        )
        ids = tiny.encode_messages(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_kwargs={"enable_thinking": True},
        )

        assert ids == expected


def test_vocabulary(tiny: Tokenizer):
    """Ids and texts of tokens can be looked up; unknown ones are None."""
    assert tiny.vocab_size == 4096
    assert tiny.token_id("<|im_end|>") == 2
    assert tiny.token_id("no such token") is None
    assert tiny.token_text(2) == "<|im_end|>"
    assert tiny.token_text(4096) is None
    assert tiny.special_token_ids == {0, 1, 2}
    assert tiny.byte_token_ids == frozenset()


def test_decode(tiny: Tokenizer):
    """Special tokens are skipped unless asked for; other added tokens are text."""
    ids = tiny.encode("<|im_start|><think>a")

    assert tiny.decode(ids) == "<think>a"
    assert tiny.decode(ids, skip_special_tokens=False) == "<|im_start|><think>a"


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_round_trip(tiny: Tokenizer, text: str):
    """Byte-level ids decode to the text that they came from, once it is in normal form."""
    ids = tiny.encode(text)

    assert tiny.encode(tiny.decode(ids, skip_special_tokens=False)) == ids


def test_without_bos(tiny: Tokenizer):
    """A tokenizer without a BOS rule adds nothing."""
    assert tiny.bos_token_id is None
    assert tiny.encode("The") == [374]
    assert tiny.encode("") == []


def test_exactly_one_bos(make_tokenizer: Callable[..., Tokenizer]):
    """The tokenizer's own BOS comes first once, also if the text begins with it."""
    tokenizer = make_tokenizer(
        tokenizer_config={"bos_token": "<|im_start|>"}, post_processor=BOS_FIRST
    )

    assert tokenizer.bos_token_id == 1
    assert tokenizer.encode("The") == [1, 374]
    assert tokenizer.encode("<|im_start|>The") == [1, 374]
    assert tokenizer.encode("") == [1]


def test_bos_of_a_conversation_is_the_templates(make_tokenizer: Callable[..., Tokenizer]):
    """Messages get the BOS that the template writes, and no second one."""
    tokenizer = make_tokenizer(
        tokenizer_config={"bos_token": "<|im_start|>"},
        post_processor=BOS_FIRST,
        chat_template="{{ bos_token }}{{ messages[0].content }}",
    )

    assert tokenizer.encode_messages([{"role": "user", "content": "The"}]) == [1, 374]


def test_eos_is_a_union(make_tokenizer: Callable[..., Tokenizer]):
    """Ids that end an answer come from both configs and from the tokenizer."""
    tokenizer = make_tokenizer(
        {"eos_token_id": 5, "text_config": {"eos_token_id": 6}},
        {"eos_token_id": [3, 4]},
        tokenizer_config={"eos_token": {"content": "<|im_end|>"}},
    )

    assert tokenizer.eos_token_ids == {2, 3, 4, 5, 6}


@pytest.mark.parametrize("value", ["2", [1, None], True, -1])
def test_bad_eos(make_tokenizer: Callable[..., Tokenizer], value: Any):
    """An eos_token_id that is no token id is refused with its file."""
    with pytest.raises(CheckpointError, match=r"generation_config\.json: eos_token_id"):
        make_tokenizer({}, {"eos_token_id": value})


def test_named_token_that_is_missing(make_tokenizer: Callable[..., Tokenizer]):
    """A checkpoint whose EOS is not in its vocabulary could never end an answer: refused."""
    with pytest.raises(CheckpointError, match=r"eos_token is '</s>'"):
        make_tokenizer(tokenizer_config={"eos_token": "</s>"})


def test_no_chat_template(make_tokenizer: Callable[..., Tokenizer]):
    """Without a chat template messages are refused; texts still work."""
    tokenizer = make_tokenizer()

    assert not tokenizer.has_chat_template
    assert tokenizer.encode("The") == [374]
    with pytest.raises(RequestError, match="no chat template") as caught:
        tokenizer.encode_messages([{"role": "user", "content": "a"}])

    assert caught.value.code == "no_chat_template"


def test_named_templates(make_tokenizer: Callable[..., Tokenizer]):
    """Of several templates, the one for tools is used when there are tools."""
    templates = [
        {"name": "default", "template": "The"},
        {"name": "tool_use", "template": "The The"},
    ]
    tokenizer = make_tokenizer(tokenizer_config={"chat_template": templates})
    messages = [{"role": "user", "content": "The"}]

    assert tokenizer.encode_messages(messages) == tokenizer.encode("The")
    assert tokenizer.encode_messages(messages, tools=[]) == tokenizer.encode("The The")


def test_malformed_messages(tiny: Tokenizer):
    """Messages are checked before the template sees them."""
    with pytest.raises(RequestError) as caught:
        tiny.encode_messages([{"role": "user", "content": 3}])

    assert caught.value.param == "messages"


def test_lone_surrogates(tiny: Tokenizer):
    """Text that no UTF-8 can spell is refused with a typed error, wherever it stands."""
    with pytest.raises(RequestError, match="character 1") as caught:
        tiny.encode("a\ud83d")

    assert (caught.value.code, caught.value.param) == ("invalid_text", "prompt")
    with pytest.raises(RequestError) as caught:
        tiny.encode_messages([{"role": "user", "content": "a\ud83d"}])

    assert (caught.value.code, caught.value.param) == ("invalid_text", "messages")
