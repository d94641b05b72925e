"""Separation of a model's reasoning from its answer."""

from __future__ import annotations


def split_reasoning(text: str, marks: tuple[str, str] | None) -> tuple[str | None, str]:
    """Split `text` into a leading reasoning part and the answer, both without the marks.

    The opening mark may be missing, because a prompt may end with it: all text before the
    closing mark is then reasoning. Without a closing mark, all text behind an opening mark is
    reasoning. Without both marks, all text is the answer and is returned unchanged.

    Args:
        text: The model's output.
        marks: Opening and closing mark, or None for a family without marks.

    Returns:
        The reasoning, stripped, or None; and the answer, stripped on the left.
    """
    if marks is None:
        return None, text
    opening, closing = marks
    body = text.lstrip()
    opened = body.startswith(opening)
    reasoning, closed, answer = body.removeprefix(opening).partition(closing)
    if not opened and not closed:
        return None, text
    return reasoning.strip(), answer.lstrip()
