"""`neve chat`, with stdin and stdout that are no terminal."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.mlx

FRANCE = "What is the capital of France?"


def test_turns_remember_and_find_their_prefix(run_loaded):
    """UX-2: each line is a message; the next turn takes the conversation from the cache."""
    lines = "Please remember this. The code of Max is 7319.\nWhat is the code of Max?\n"
    done = run_loaded("chat", "m", "--system", "You are a helpful assistant.", stdin=lines)
    _, second = done.stderr.splitlines()

    assert done.exit_code == 0
    assert done.stdout.splitlines()[-1] == "The code of Max is 7319."
    assert int(second.split()[3]) > 16


def test_backslash_continues_the_message(run_loaded, model):
    """UX-2: a trailing backslash joins lines, also at the end of the input."""
    content = "The code of Max is 7319.\nWhat is the code of Max?"
    expected = model.generate([{"role": "user", "content": content}], max_tokens=12).text
    lines = content.replace("\n", "\\\n")
    whole = run_loaded("chat", "m", "--max-tokens", "12", stdin=lines)
    cut = run_loaded("chat", "m", "--max-tokens", "12", stdin=f"{lines}\\\n")

    assert (whole.stdout, cut.stdout) == (f"{expected}\n", f"{expected}\n")


def test_input_without_a_message(run_loaded):
    """UX-2: nothing is sent for an empty line, /exit or the end of the input."""
    done = run_loaded("chat", "m", stdin="\n  \n/exit\nWhat?\n")

    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_reset_forgets(run_loaded):
    """UX-2: /reset begins anew under the same system message."""
    lines = f"{FRANCE}\n/reset\n{FRANCE}\n"
    done = run_loaded("chat", "m", "--system", "You are a helpful assistant.", stdin=lines)
    first, note, second = done.stderr.splitlines()

    assert note == "a new conversation"
    assert "prompt 26 tokens" in first
    assert "prompt 26 tokens" in second


def test_system_message(run_loaded):
    """UX-2: /system begins anew under another system message, and shows it."""
    lines = f"/system\n/system You are a helpful assistant.\n/system\n{FRANCE}\n"
    done = run_loaded("chat", "m", stdin=lines)

    assert done.stderr.splitlines()[:3] == [
        "the system message is: none",
        "a new conversation",
        "the system message is: You are a helpful assistant.",
    ]
    assert "prompt 26 tokens" in done.stderr


def test_stats_and_help(run_loaded):
    """UX-2: /stats shows requests, cache and memory; /help names every command."""
    done = run_loaded("chat", "m", stdin="/stats\n/help\n")

    for word in ("finished", "were found in it", "group 0: full,", "MiB"):
        assert word in done.stderr
    for command in ("/reset", "/system", "/stats", "/help", "/exit"):
        assert command in done.stderr


def test_unknown_commands_are_named_and_paths_are_messages(run_loaded):
    """UX-2: a word behind a slash is a command, anything longer is a message."""
    done = run_loaded("chat", "m", "--max-tokens", "2", stdin="/rest\n/etc/hosts is what?\n")

    assert "there is no command /rest (known: /reset, " in done.stderr
    assert "2 tokens" in done.stderr
    assert done.stdout != ""


def test_failed_turn_ends_a_script(run_loaded):
    """UX-2: where nobody can try again, a turn that fails ends the program."""
    done = run_loaded("chat", "m", stdin=f"{'word ' * 5000}\n{FRANCE}\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "but the model's context holds 4096" in done.stderr


def test_stdin_that_is_no_text(run_loaded):
    """UX-2: bytes that are no UTF-8 are refused."""
    done = run_loaded("chat", "m", stdin=b"\xff\n")

    assert done.exit_code == 2
    assert "stdin is not UTF-8" in done.stderr


def test_options_are_checked_first(run):
    """UX-2: a wrong option costs no loading."""
    done = run("chat", "./nowhere.gguf", "--temperature", "-1")

    assert done.exit_code == 2
    assert "Invalid value for '--temperature'" in done.stderr
