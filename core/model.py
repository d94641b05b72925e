"""The user's handle on a loaded model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import attrs
import mlx.core as mx

from .engine.cold import cold_stats
from .engine.completion import Completion, Piece
from .engine.engine import Engine
from .engine.handles import Handle
from .errors import RequestError
from .kvcache.block_identity import salt_domain
from .metal.runtime import dispatch
from .metrics import ModelStats, render_metrics
from .sampling.params import SamplingParams
from .text.reasoning import split_reasoning

if TYPE_CHECKING:
    from .engine.core import Core
    from .engine.identification import Identification
    from .text.tokenizer import Tokenizer

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Message]"


class Model:
    """A loaded model: generate, stream, chat. Every method may be called from any thread.

    Use it as a context manager, or call `close`.

    Attributes:
        info: What loading found out.
    """

    def __init__(self, engine: Engine) -> None:
        self.info = engine.info
        self._engine = engine
        self._chats = itertools.count()

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
            prompt: Text, taken as it stands; token ids; or chat messages, which go through
                the checkpoint's template.
            tools: Tool descriptions for the template.
            template_kwargs: Flags for the template, e.g. `{"enable_thinking": False}`.

        Raises:
            RequestError: The prompt is empty, malformed, or has ids outside the vocabulary.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt)
        elif prompt and isinstance(prompt[0], Mapping):
            ids = self.tokenizer.encode_messages(
                cast("Sequence[Message]", prompt), tools=tools, template_kwargs=template_kwargs
            )
        else:
            ids = self._check_ids(prompt)
        if not ids:
            raise RequestError(
                "the prompt is empty: at least one token is needed",
                code="empty_prompt",
                param="prompt",
            )
        return ids

    def _check_ids(self, prompt: Sequence[Any]) -> list[int]:
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(
                    "a prompt is a string, token ids, or messages with a role, not a list "
                    f"with {token!r}",
                    code="invalid_prompt",
                    param="prompt",
                )
            if not 0 <= token < self.info.vocab_size:
                raise RequestError(
                    f"token id {token} is outside the vocabulary of {self.info.vocab_size}",
                    code="invalid_prompt",
                    param="prompt",
                )
        return list(prompt)

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
        params = _sampling_params(sampling)
        params.check_vocabulary(self.info.vocab_size)
        ids = self.encode(prompt, tools=tools, template_kwargs=template_kwargs)
        return self._engine.submit(ids, params, salt_domain(cache_salt), owner or "")

    def generate(self, prompt: Prompt, **options: Any) -> Completion:
        """Return the completion of a prompt; options as in `submit`.

        Raises:
            RequestError: As in `submit`, and `ContextLengthExceededError`.
        """
        return self.submit(prompt, **options).result()

    def stream(self, prompt: Prompt, **options: Any) -> Iterator[Piece]:
        """Yield a completion's pieces as they come; leaving the loop cancels the request.

        The request is queued by this call, not by the first `next`.
        """
        return _cancelling(self.submit(prompt, **options))

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
        """
        owner = owner or f"chat {next(self._chats)}"
        return Chat(self, system, {**options, "cache_salt": cache_salt, "owner": owner})

    def logits(self, ids: Sequence[int]) -> mx.array:
        """Return the logits `[T, V]`, float32, of every position of one sequence.

        Computed apart from the cache, in one piece.

        Raises:
            RequestError: An id is outside the vocabulary, or there are none.
            ContextLengthExceededError: There are more than the model can address.
        """
        checked = self.encode(ids)
        return self._engine.call(lambda core: core.runner.evaluate(checked))

    def stats(self) -> ModelStats:
        """Return the model's figures, taken between two steps."""
        return self._engine.call(_stats)

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
        deadline = time.monotonic() + timeout_s
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


class Chat:
    """A conversation: every turn sends the whole history, of which the cache knows the most.

    A turn that fails or is abandoned leaves the history as it was. One turn at a time.

    Attributes:
        messages: The history so far.
    """

    def __init__(self, model: Model, system: str | None, options: Mapping[str, Any]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._model = model
        self._options = dict(options)
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def send(self, content: str, **options: Any) -> Completion:
        """Send a user message and return the answer.

        Raises:
            RequestError: As in `Model.submit`.
        """
        messages = [*self.messages, {"role": "user", "content": content}]
        completion = self._model.generate(messages, **{**self._options, **options})
        self.remember(messages, completion)
        return completion

    def stream(self, content: str, **options: Any) -> Iterator[Piece]:
        """Send a user message and yield the answer's pieces.

        The history grows when the last piece was taken.
        """
        messages = [*self.messages, {"role": "user", "content": content}]
        handle = self._model.submit(messages, **{**self._options, **options})
        yield from _cancelling(handle)
        self.remember(messages, handle.result())

    def remember(self, messages: list[dict[str, Any]], completion: Completion) -> None:
        """Make a turn that was run elsewhere the end of the history.

        Args:
            messages: What was sent, the user's message last.
            completion: The answer; its reasoning part is kept apart from its content.
        """
        marks = self._model.info.protocol.reasoning
        reasoning, answer = split_reasoning(completion.text, marks)
        message: dict[str, Any] = {"role": "assistant", "content": answer}
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        self.messages = [*messages, message]


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


def _cancelling(handle: Handle) -> Iterator[Piece]:
    """Yield a handle's pieces; cancel it if the consumer leaves early."""
    try:
        yield from handle
    finally:
        if not handle.done:
            handle.cancel()


def _sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    known = [field.name for field in attrs.fields(SamplingParams)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise RequestError(
            f"{unknown[0]} is no parameter of a request (known: {', '.join(known)})",
            code="unknown_parameter",
            param=unknown[0],
        )
    return SamplingParams(**options)
