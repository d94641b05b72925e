"""The user's handle on a loaded model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import attrs
import mlx.core as mx

from .arguments import optional_seconds, optional_text, reading, seconds, wrong
from .conversation import Chat
from .engine.cold import cold_stats
from .engine.completion import Completion
from .engine.engine import Engine
from .engine.handles import Handle
from .engine.options import check_options, read_sampling
from .engine.stream import Stream
from .kvcache.block_identity import salt_domain
from .metal.runtime import dispatch
from .metrics import ModelStats, render_metrics
from .text.prompt import Message, Prompt, encode_prompt

if TYPE_CHECKING:
    from .engine.core import Core, ModelInfo
    from .engine.identification import Identification
    from .text.tokenizer import Tokenizer

__all__ = ["Chat", "Message", "Model", "Prompt"]


class Model:
    """A loaded model: generate, stream, chat. Every method may be called from any thread.

    Use it as a context manager, or call `close`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._chats = itertools.count()

    @property
    def info(self) -> ModelInfo:
        """What loading found out, and whether prefixes go to disk as things stand."""
        return self._engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""
        return self.info.tokenizer

    def encode(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids that a prompt stands for.

        Args:
            prompt: Text, taken as it stands; token ids, as a sequence or a one-dimensional
                array of integers; or chat messages, which go through the checkpoint's template.
            tools: Tool descriptions for the template; messages only.
            template_kwargs: Flags for the template, e.g. `{"enable_thinking": False}`; messages
                only.

        Raises:
            RequestError: The prompt is empty, malformed, or has ids outside the vocabulary; a
                message has a part that cannot be read, or that the template drops.
        """
        return encode_prompt(
            self.tokenizer,
            prompt,
            vocab_size=self.info.vocab_size,
            tools=tools,
            template_kwargs=template_kwargs,
        )

    def submit(
        self,
        prompt: Prompt,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        cache_salt: str | None = None,
        owner: str | None = None,
        **sampling: Any,
    ) -> Handle:
        """Queue a request and return at once.

        Args:
            prompt: See `encode`.
            tools: See `encode`.
            template_kwargs: See `encode`.
            cache_salt: Requests share cached prefixes only under equal salts, None being
                one of them.
            owner: The conversation that it belongs to: models that keep state outside their
                blocks keep it by conversation. None means the model's one nameless owner.
            **sampling: Fields of `SamplingParams`.

        Raises:
            RequestError: The prompt or a parameter is wrong. (A prompt that does not fit
                fails on the handle.)
            EngineClosedError: The model was closed.
        """
        params = read_sampling(sampling, vocab_size=self.info.vocab_size)
        domain = salt_domain(cache_salt)
        ids = self.encode(prompt, tools=tools, template_kwargs=template_kwargs)
        return self._engine.submit(ids, params, domain, owner)

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Return the completion of a prompt; options as in `submit`.

        Raises:
            RequestError: As in `submit`, and `ContextLengthExceededError`.
        """
        return self.submit(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Any) -> Stream:
        """Return a completion's pieces as they come; options as in `submit`.

        The request is queued by this call, not by the first `next`. Leaving the loop, closing
        the stream, or dropping it cancels the request.

        Raises:
            RequestError: As in `submit`.
        """
        return Stream(self.submit(prompt, **options))

    def chat(
        self,
        system: str | None = None,
        *,
        cache_salt: str | None = None,
        owner: str | None = None,
        **options: Any,
    ) -> Chat:
        """Open a conversation.

        Args:
            system: System message.
            cache_salt: Sharing domain of all its turns.
            owner: Its name where states are kept by conversation; None makes one up.
            **options: Defaults for every turn, as in `submit`.

        Raises:
            RequestError: An argument is wrong.
        """
        check_options(options, vocab_size=self.info.vocab_size)
        salt_domain(cache_salt)
        owner = optional_text("owner", owner) or f"chat {next(self._chats)}"
        return Chat(
            self.submit,
            optional_text("system", system),
            {**options, "cache_salt": cache_salt, "owner": owner},
            reasoning=self.info.protocol.reasoning,
        )

    def logits(self, ids: Sequence[int]) -> mx.array:
        """Return the logits `[T, V]`, float32, of every position of one sequence.

        Computed apart from the cache, in one piece.

        Raises:
            RequestError: An id is outside the vocabulary, or there are none.
            ContextLengthExceededError: There are more than the model can address.
        """
        with reading("ids"):
            if isinstance(ids, str):
                raise wrong("ids", ids, "token ids")
        checked = self.encode(ids)
        return self._engine.call(lambda core: core.runner.evaluate(checked))

    def stats(self) -> ModelStats:
        """Return the model's figures, taken between two steps."""
        faults = self._engine.faults.snapshot()
        return attrs.evolve(self._engine.call(_stats), faults=faults)

    def metrics(self) -> str:
        """Return the model's figures as Prometheus reads them, every sample with its model."""
        return render_metrics(self.info.source, self.stats())

    def wait_identified(self, timeout_s: float | None = None) -> bool:
        """Wait until prefixes can be restored.

        The first load of a checkpoint reads its weights in full, beside the first turns, to
        know which model it is; before that nothing is restored.

        Returns:
            Whether they can be; False if the cold tier is off, or the time is over.
        """
        timeout_s = optional_seconds("timeout_s", timeout_s)
        identification = self._engine.call(_identification)
        if identification is None:
            return False
        identification.wait(timeout_s)
        return self._engine.call(_is_identified)

    def fingerprint(self) -> str:
        """Return what the model's objects on disk are named after, in hexadecimal.

        Empty while it is not known, and without a cold tier.
        """
        return self._engine.call(_fingerprint).hex()

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Wait until what ended turns left is on disk, as far as their budgets go.

        No turn makes progress meanwhile. `close` does the same.

        Returns:
            Whether all of it landed in time; True without a cold tier.
        """
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        return self._engine.call(lambda core: core.cold is None or core.cold.flush(deadline))

    def max_concurrent_sequences(self) -> int:
        """Return how many turns may run at once.

        As many as `max_num_seqs` allows and, if that is fewer, as can hold a first block each
        in every group of the cache.

        Raises:
            EngineClosedError: The model was closed.
        """
        return self._engine.call(_max_concurrent_sequences)

    def close(self) -> None:
        """End the engine; running requests fail. Closing twice is harmless."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _identification(core: Core) -> Identification | None:
    return None if core.cold is None else core.cold.identification


def _fingerprint(core: Core) -> bytes:
    return b"" if core.cold is None else core.cold.tier.fingerprint or b""


def _max_concurrent_sequences(core: Core) -> int:
    cache = core.runner.lane.cache
    return min(core.info.settings.scheduler.max_num_seqs, cache.max_concurrent_sequences)


def _is_identified(core: Core) -> bool:
    return bool(_fingerprint(core))


def _stats(core: Core) -> ModelStats:
    cold, sidecar = cold_stats(core.cold)
    return ModelStats(
        scheduler=core.scheduler.stats(),
        pools=core.runner.lane.stats(),
        cold=cold,
        sidecar=sidecar,
        kernels=dispatch.counts(),
        memory={
            "active": mx.get_active_memory(),
            "peak": mx.get_peak_memory(),
            "cache": mx.get_cache_memory(),
        },
    )
