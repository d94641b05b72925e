"""The user's handle: prompts, chats, parameters, loading."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import neve
from neve.errors import (
    ConfigError,
    FamilyNotInstalledError,
    InvalidSamplingError,
    RequestError,
    SaltTooLongError,
    SettingsError,
)

pytestmark = pytest.mark.mlx

CHECKPOINT = Path(__file__).parents[1] / "checkpoints" / "qwen3"


@pytest.fixture(scope="module")
def model():
    with neve.load(CHECKPOINT, paged_cache_memory_mb=64) as model:
        yield model


def test_text_ids_and_messages_are_prompts(model):
    """UX-1: a prompt is text as it stands, token ids, or messages for the template."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    ids = model.encode(messages)

    assert (
        model.generate(messages, max_tokens=20).text == model.generate(ids, max_tokens=20).text
    )
    assert "Paris" in model.generate(messages, max_tokens=20).text
    assert model.generate("Once upon", max_tokens=4).usage.prompt_tokens == len(
        model.encode("Once upon")
    )


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", "empty_prompt"),
        ([], "empty_prompt"),
        ([4096], "invalid_prompt"),
        ([-1], "invalid_prompt"),
        ([True], "invalid_prompt"),
        ([1, "x"], "invalid_prompt"),
    ],
)
def test_wrong_prompts_are_refused(model, prompt, code):
    """A prompt that cannot be run is a typed error before it is queued."""
    with pytest.raises(RequestError) as caught:
        model.submit(prompt)

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"temperature": float("nan")}, InvalidSamplingError, "temperature"),
        ({"top_p": 2}, InvalidSamplingError, "top_p"),
        ({"max_tokens": 0}, InvalidSamplingError, "max_tokens"),
        ({"logit_bias": {5000: 1.0}}, InvalidSamplingError, "logit_bias"),
        ({"temprature": 1}, RequestError, "temprature"),
        ({"cache_salt": "é" * 129}, SaltTooLongError, "258"),
    ],
)
def test_wrong_parameters_are_refused(model, options, error, word):
    """A parameter that is unknown or out of range is named."""
    with pytest.raises(error, match=word):
        model.submit("x", **options)


def test_logits_are_the_references(model):
    """FA-1: float32 logits within 2e-5 of the reference's range."""
    golden = json.loads((CHECKPOINT / "golden.json").read_text())["prompts"]
    ids = next(p["ids"] for p in golden if p["id"] == "recall_mid")
    stored = np.load(CHECKPOINT / "logits.npz")
    expected = stored["recall_mid.logits"]
    logits = np.array(model.logits(ids))[stored["recall_mid.positions"]]

    assert np.abs(logits - expected).max() < 2e-5 * (expected.max() - expected.min())


def test_chat_remembers_and_hits(model):
    """UX-1, KV-2: a second turn knows the first, and computes only what is new."""
    chat = model.chat("You are a helpful assistant.", max_tokens=40)
    chat.send("Please remember this. The code of Max is 7319.")
    done = chat.send("What is the code of Max?")

    assert "7319" in done.text
    assert done.usage.cached_tokens > 16
    assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 2]


def test_chat_streams(model):
    """UX-1: a streamed turn enters the history when it is complete."""
    chat = model.chat(max_tokens=30)
    text = "".join(p.text for p in chat.stream("What is the opposite of hot?"))

    assert chat.messages[-1] == {"role": "assistant", "content": text}


def test_abandoned_or_failed_turn_leaves_the_history(model):
    """UX-1: a turn that does not end is not remembered."""
    chat = model.chat(max_tokens=30)
    stream = chat.stream("Tell me a story.")
    next(stream)
    stream.close()
    with pytest.raises(RequestError):
        chat.send("Tell me a story.", temperature=-1)

    assert chat.messages == []


def test_reasoning_is_kept_apart_in_the_history(model):
    """The reasoning part of an answer does not stand in the next prompt's content."""
    chat = model.chat(max_tokens=64, template_kwargs={"enable_thinking": True})
    done = chat.send("What is 3 plus 5?")

    assert "</think>" in done.text
    assert "</think>" not in chat.messages[-1]["content"]
    assert chat.messages[-1]["reasoning_content"]


def test_unknown_family_names_its_distribution(tmp_path):
    """FW-1: without the plugin, loading fails and says what to install."""
    (tmp_path / "config.json").write_text('{"model_type": "mystery_moe"}')
    (tmp_path / "model.safetensors").write_bytes(
        (CHECKPOINT / "model.safetensors").read_bytes()
    )
    with pytest.raises(FamilyNotInstalledError, match="neve-mystery-moe"):
        neve.load(tmp_path)


def test_checkpoint_without_a_model_type(tmp_path):
    """A config that does not say what it is names the missing key."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(
        (CHECKPOINT / "model.safetensors").read_bytes()
    )
    with pytest.raises(ConfigError, match="model_type"):
        neve.load(tmp_path)


def test_wrong_settings_are_refused_before_anything_is_read():
    """A wrong setting costs no download: the checkpoint need not even exist."""
    with pytest.raises(SettingsError, match="did you mean max_num_seqs"):
        neve.load("no/where", max_num_seq=3)


def test_settings_reach_the_engine():
    """KV-10: settings are in force, and the environment can roll the paged cache back."""
    code = (
        "import neve, sys\n"
        f"m = neve.load({str(CHECKPOINT)!r}, max_num_seqs=3, paged_cache_memory_mb=8)\n"
        "print(m.info.lane, m.max_concurrent_sequences())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"MLX_BLOCK_PAGED_CACHE": "off", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    assert done.stdout.split() == ["flat", "3"]


@pytest.mark.parametrize(("asked", "width"), [(4, 4), (32, 9)])
def test_width_of_admission(asked, width):
    """GR-4: as many turns as asked for, or as can hold a first block in every group."""
    with neve.load(
        CHECKPOINT, max_num_seqs=asked, paged_cache_memory_mb=1, dtype="float32"
    ) as model:
        pools = model.stats().pools

        assert pools is not None
        assert pools.groups[0].max_num_blocks == 10
        assert model.max_concurrent_sequences() == width


def test_interpreter_ends_cleanly_with_an_open_model():
    """A program that forgets `close` ends with exit code 0, in the middle of a request."""
    code = (
        "import neve\n"
        f"m = neve.load({str(CHECKPOINT)!r}, paged_cache_memory_mb=8)\n"
        "h = m.submit('Once upon a time', max_tokens=500, ignore_eos=True)\n"
        "next(iter(h))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_interpreter_ends_cleanly_after_a_failed_load(tmp_path):
    """A checkpoint that cannot be loaded is an error, and no abort at the program's end."""
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((CHECKPOINT / name).read_bytes())
    code = (
        "import mlx.core as mx, neve\n"
        f"w = mx.load({str(CHECKPOINT / 'model.safetensors')!r})\n"
        "w.pop('model.norm.weight')\n"
        f"mx.save_safetensors({str(tmp_path / 'model.safetensors')!r}, w)\n"
        "try:\n"
        f"    neve.load({str(tmp_path)!r})\n"
        "except neve.NeveError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "model.norm.weight" in done.stdout
