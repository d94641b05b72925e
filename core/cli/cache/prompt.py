"""A prompt as a model would look it up on disk, found out without loading the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from ..options import settings_option, verbose_option
from ..prompt import check_system, messages, read_prompt
from .options import progress_bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...coldtier.inspection.explanation import Prefix
    from ...coldtier.inspection.handle import ColdStoreHandle
    from ...loading import Examined
    from ..options import F


def prompt_options(command: F) -> F:
    """Add to a command what decides which tokens a prompt stands for."""
    for option in reversed(
        (
            click.option(
                "--chat/--raw",
                default=False,
                help="Send PROMPT as a user's message, or as it stands [default: --raw].",
            ),
            click.option("--system", metavar="TEXT", help="System message; needs --chat."),
            click.option("--salt", metavar="TEXT", help="The request's cache_salt."),
            settings_option,
            verbose_option,
        )
    ):
        command = option(command)
    return command


@attrs.frozen(kw_only=True)
class Asked:
    """A prompt, and how it would be sent."""

    prompt: str | None
    chat: bool
    system: str | None
    salt: str | None

    def __attrs_post_init__(self) -> None:
        check_system(self.system, chat=self.chat)


def _tokens(examined: Examined, text: str, asked: Asked) -> list[int]:
    tokenizer = examined.tokenizer()
    if not asked.chat:
        ids = tokenizer.encode(text)
    else:
        ids = tokenizer.encode_messages(messages(text, asked.system))
    if not ids:
        raise click.UsageError("the prompt is empty: at least one token is needed")
    return ids


def prefix_of(
    store: ColdStoreHandle, model: str, settings: Mapping[str, Any], asked: Asked
) -> Prefix:
    """Return a prompt as the model in `model` would look it up; its weights are read once.

    Raises:
        NeveError: As `neve.load`, and SaltTooLongError.
    """
    from ...kvcache.block_identity import salt_domain
    from ...metal.runtime import blas

    blas.preload()  # before MLX is imported
    from ...checkpoint.digest_memory import DigestMemory
    from ...coldtier.inspection.explanation import Prefix
    from ...coldtier.objects.fingerprint import fingerprint
    from ...loading import examine

    salt, text = salt_domain(asked.salt), read_prompt(asked.prompt)
    examined = examine(model, **settings)
    subject, tokens = examined.subject, _tokens(examined, text, asked)
    with progress_bar("identifying the weights") as progress:
        weights = subject.weights.digest(DigestMemory(store.root / "digests.json"), progress)
    assert weights is not None, "nobody cancels it"
    return Prefix(
        tokens=tokens,
        fingerprint=fingerprint(subject.components(weights)),
        block_size=subject.block_size,
        policy=subject.policy,
        salt=salt,
    )
