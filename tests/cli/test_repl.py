"""What the chat loop does at a terminal."""

from __future__ import annotations

import pytest

from neve.cli import repl
from neve.cli.repl import Repl

pytestmark = pytest.mark.mlx

FRANCE = "What is the capital of France?"


@pytest.fixture
def talk(model, monkeypatch, capsys):
    """Run a loop at a terminal; an exception among the lines is raised where it stands."""

    def run(*lines, system=None, **fields):
        waiting = iter(lines)

        def read(_):
            line = next(waiting, EOFError())
            if isinstance(line, BaseException):
                raise line
            return line

        monkeypatch.setattr("builtins.input", read)
        loop = Repl(model, system, {"max_tokens": 30, **fields})
        loop._interactive = True
        loop.run()
        return loop, capsys.readouterr()

    return run


def test_two_interruptions_in_a_row_leave(talk, capsys):
    """UX-2: Ctrl-C says what a second one does, and the second one leaves."""
    with pytest.raises(KeyboardInterrupt):
        talk(KeyboardInterrupt(), KeyboardInterrupt(), FRANCE)

    written = capsys.readouterr()
    assert written.out == ""
    assert "Ctrl-C again leaves" in written.err


def test_interruptions_apart_do_not_leave(talk):
    """UX-2: a message between two interruptions shows that somebody stayed."""
    _, written = talk(KeyboardInterrupt(), FRANCE, KeyboardInterrupt(), FRANCE)

    assert written.out.count("Paris") == 2


def test_interrupted_answer_is_not_remembered(talk, monkeypatch):
    """UX-2: Ctrl-C stops the answer and its request; the conversation goes on without it."""
    written_pieces = []

    def write(text, *, dim):
        written_pieces.append(text)
        if len(written_pieces) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(repl, "write_piece", write)
    loop, written = talk("Tell me a story.", FRANCE, max_tokens=200)

    assert "Ctrl-C again leaves" in written.err
    assert [m["content"] for m in loop._chat.messages if m["role"] == "user"] == [FRANCE]
    assert loop._model.stats().scheduler.running == 0


def test_failed_turn_does_not_end_the_conversation(talk):
    """UX-2: at a terminal a refused message is explained, and the next one answered."""
    _, written = talk("word " * 5000, FRANCE)

    assert "Error: the prompt has" in written.err
    assert "Paris" in written.out


@pytest.mark.parametrize("thinking", [None, True])
def test_reasoning_is_dim_at_a_terminal(talk, model, monkeypatch, thinking):
    """UX-4: reasoning is told from the answer, also if the prompt has opened it."""
    parts = []
    monkeypatch.setattr(repl, "write_piece", lambda text, *, dim: parts.append((text, dim)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    encode = model.encode
    template = {} if thinking is None else {"enable_thinking": thinking}

    def encoded(prompt, **_):
        flags = template if isinstance(prompt[0], dict) else None
        return encode(prompt, template_kwargs=flags)

    monkeypatch.setattr(model, "encode", encoded)
    loop, _ = talk("What is 3 plus 5?", max_tokens=64)
    reasoning = "".join(text for text, dim in parts if dim)
    answer = "".join(text for text, dim in parts if not dim)

    assert reasoning.startswith("<think>") == (thinking is None)
    assert reasoning.endswith("</think>")
    assert loop._chat.messages[-1]["content"] == answer.lstrip()
