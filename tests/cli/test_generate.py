"""`neve generate`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from unittest.mock import Mock

import attrs
import click
import pytest

from neve.cli.prompt import read_prompt

pytestmark = pytest.mark.mlx

STORY = "Once upon a time"
FRANCE = "What is the capital of France?"


def test_text_on_stdout_figures_on_stderr(run_loaded, model):
    """UX-2: stdout has the text alone, streamed or not; stderr one line of figures."""
    text = model.generate(STORY, max_tokens=8).text
    streamed = run_loaded("generate", "m", STORY, "--max-tokens", "8")
    whole = run_loaded("generate", "m", STORY, "--max-tokens", "8", "--no-stream")

    assert (streamed.exit_code, streamed.stdout) == (0, f"{text}\n")
    assert whole.stdout == streamed.stdout
    assert streamed.stderr.startswith("prompt 4 tokens, ")
    assert streamed.stderr.endswith("cut at the token limit\n")


@pytest.mark.parametrize(
    ("arguments", "stdin"), [((), "\n"), (("-",), ""), (("-",), "\r\n"), ((), "")]
)
def test_prompt_from_stdin(run_loaded, model, arguments, stdin):
    """UX-2: a missing prompt or - is read from stdin, whose last line break is the file's."""
    text = model.generate(STORY, max_tokens=4).text
    done = run_loaded("generate", "m", *arguments, "--max-tokens", "4", stdin=STORY + stdin)

    assert (done.exit_code, done.stdout) == (0, f"{text}\n")


def test_chat_goes_through_the_template(run_loaded):
    """UX-2: --chat sends a user's message, behind a system message if there is one."""
    system = ("--system", "You are a helpful assistant.")
    done = run_loaded("generate", "m", FRANCE, "--chat", *system)

    assert done.stdout == "The capital of France is Paris.\n"
    assert "prompt 26 tokens" in done.stderr
    assert "ended by itself" in done.stderr


def test_json_is_the_completion(run_loaded, model):
    """UX-2: --json is one object with everything that the library returns."""
    expected = model.generate(STORY, max_tokens=6)
    done = run_loaded("generate", "m", STORY, "--max-tokens", "6", "--json")
    found = json.loads(done.stdout)
    keys = "text tokens finish_reason usage cache_report timings"

    assert set(found) == set(keys.split())
    assert (found["text"], tuple(found["tokens"])) == (expected.text, expected.tokens)
    assert found["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_logprobs_are_part_of_the_json(run_loaded):
    """UX-2: log-probabilities appear when they were asked for."""
    done = run_loaded("generate", "m", STORY, "--max-tokens", "2", "--json", "--logprobs", "3")
    logprobs = json.loads(done.stdout)["logprobs"]

    assert [len(entry["top"]) for entry in logprobs] == [3, 3]


def test_sampling_options_arrive(run_loaded, model):
    """UX-2: seed, temperature and the rest mean what they mean in the library."""
    options = {"temperature": 1.5, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7}
    flags = [
        text
        for name, value in options.items()
        for text in (f"--{name.replace('_', '-')}", str(value))
    ]
    expected = model.generate(STORY, max_tokens=12, stop=("zz", "was"), **options).text
    done = run_loaded(
        "generate", "m", STORY, "--max-tokens", "12", "--stop", "zz", "--stop", "was", *flags
    )

    assert done.stdout == f"{expected}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["x", "--system", "y"], "--system needs --chat"),
        (["x", "--logprobs", "2"], "--logprobs needs --json"),
        (["x", "--json", "--logprobs", "21"], "Invalid value for '--logprobs'"),
        (["x", "--temperature", "nan"], "Invalid value for '--temperature'"),
        (["x", "--max-tokens", "0"], "Invalid value for '--max-tokens'"),
        ([""], "the prompt is empty"),
        (["\udcff"], "not valid Unicode"),
    ],
)
def test_wrong_input(run_loaded, arguments, sentence):
    """UX-2: wrong input ends with exit code 2 and a sentence."""
    done = run_loaded("generate", "m", *arguments)

    assert (done.exit_code, done.stdout) == (2, "")
    assert sentence in done.stderr


def test_stdin_that_is_no_text(run_loaded):
    """UX-2: bytes that are no UTF-8 are refused."""
    done = run_loaded("generate", "m", stdin=b"\xff\xfe")

    assert done.exit_code == 2
    assert "the prompt on stdin is not UTF-8" in done.stderr


def test_missing_prompt_at_a_terminal(monkeypatch):
    """UX-2: the program does not wait for a prompt that nobody knows to type."""
    monkeypatch.setattr("sys.stdin", Mock(isatty=lambda: True))
    with pytest.raises(click.UsageError, match="pipe it in"):
        read_prompt(None)


def test_settings_reach_the_model(run, checkpoint):
    """UX-2: --set sets any field; a wrong one is refused with its name."""
    cap = ("--set", "paged_cache_memory_mb=16")
    small = run("generate", checkpoint, STORY, *cap, "--set", "max_context=3")
    wrong = run("generate", checkpoint, STORY, "--set", "max_num_seq=4")

    assert (small.exit_code, wrong.exit_code) == (2, 2)
    assert "the prompt has 4 tokens, but the model's context holds 3" in small.stderr
    assert "did you mean max_num_seqs?" in wrong.stderr


def test_interruption_ends_the_request_and_the_program(checkpoint):
    """UX-2: Ctrl-C in the middle of an answer leaves what was written, and no traceback."""
    # hot enough never to end by itself
    options = ("--max-tokens", "3000", "--temperature", "3", "--set", "max_num_seqs=1")
    process = subprocess.Popen(
        [sys.executable, "-m", "neve.cli.main", "generate", checkpoint, STORY, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert errors.decode() == "interrupted\n"


def test_logits_that_are_no_numbers_are_no_success(run_loaded, model, monkeypatch):
    """A model of NaN ends the command with an error that names the fault, and no answer."""
    family = type(model.info.family)
    real = family.forward

    def forward(*args):
        output = real(*args)
        logits = None if output.logits is None else output.logits * float("nan")
        return attrs.evolve(output, logits=logits)

    monkeypatch.setattr(family, "forward", forward)
    for options in ((), ("--json", "--logprobs", "1"), ("--no-stream",)):
        done = run_loaded("generate", "m", "What is that word?", *options)

        assert done.exit_code == 1
        assert "logits at position" in done.stderr
        assert "NaN" not in done.stdout
