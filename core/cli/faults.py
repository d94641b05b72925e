"""How an error is told at the shell: long lists line by line, and where a cause arose."""

from __future__ import annotations

from ..errors import NeveError, SettingsError, WeightError

_MAX_SHOWN = 10


def error_text(error: NeveError) -> str:
    """Return an error's sentence; findings of which there are several have a line each."""
    match error:
        case SettingsError(findings=findings) if len(findings) > 1:
            return "\n".join([f"{len(findings)} settings are wrong:", *_lines(findings)])
        case WeightError() if error.missing or error.unexpected or error.mismatched:
            return "\n".join(["the weights do not fit the model:", *_weights(error)])
        case _:
            return str(error)


def _weights(error: WeightError) -> list[str]:
    kinds = {
        "the checkpoint lacks": error.missing,
        "the model has no place for": error.unexpected,
        "of another shape or type": error.mismatched,
    }
    lines: list[str] = []
    for title, names in kinds.items():
        if names:
            lines += [f"{title}: {len(names)}", *_lines(names)]
    return lines


def _lines(items: tuple[str, ...]) -> list[str]:
    shown = [f"  {item}" for item in items[:_MAX_SHOWN]]
    more = len(items) - _MAX_SHOWN
    return [*shown, f"  and {more} more"] if more > 0 else shown
