"""Tell a model's reasoning from its answer."""

from __future__ import annotations


def split_reasoning(text: str, marks: tuple[str, str] | None) -> tuple[str | None, str]:
    """Split `text` into a leading reasoning part and the answer, both without the marks.

    The opening mark may be missing, as it is when it stood at the end of the prompt: then all
    before the closing mark is reasoning. An opened part that never closes is reasoning to the
    end. Without marks, or with neither in its place, all is answer and comes back unchanged.

    Args:
        text: What the model wrote.
        marks: Opening and closing mark, or None for a family that has none.

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
