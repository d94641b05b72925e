"""The restart-parity gate: is an answer from a restored prefix the answer?

Three instances of one model run one after the other. The first answers with persistence on
and leaves its prefix on disk; the second, fresh, finds it there; the third runs without a
cold tier. Equal texts alone prove nothing, since a restore that silently fails is computed
again: the counts have to say that something was restored, and that nothing was corrupt.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from . import interrupts
from .arguments import function, integer, items, wrong
from .checkpoint.resolve import resolve_checkpoint
from .coldtier.admission.evidence import Evidence, Figures, evidence_dir, write_evidence
from .coldtier.stats import ColdCacheStats, ColdSidecarStats
from .engine.completion import Completion
from .engine.core import ModelInfo
from .errors import GateFailedError
from .loading import load, load_for_gate
from .model import Model, Prompt

_ANSWER_TOKENS = 32

_BODY = """\
A river does not hurry, and yet it is never late. In the morning the miller opens the gate,
and by noon the wheel has ground what the village will eat: 3 sacks of wheat, 2 of rye and
one of oats. "Who counts them?" asked the girl. "The cat does," said the miller, "and she
has not been wrong since 1897." Then they both laughed, and the wheel went on turning.
"""
_ENDINGS = (
    "In the evening the miller closed the gate, and the girl said:",
    "At night a storm came up from the sea, and the first thing that it took was",
)


@attrs.frozen
class GateCase:
    """What is asked before and after the restart.

    Attributes:
        capture: The prompt whose prefix is left on disk.
        restore: The prompt that finds it; the same, or one that parts from it somewhere.
    """

    capture: Prompt
    restore: Prompt


CASES = (
    GateCase(_BODY * 3 + _ENDINGS[0], _BODY * 3 + _ENDINGS[0]),
    GateCase(_BODY * 3 + _ENDINGS[0], _BODY * 3 + _ENDINGS[1]),
)
"""One prompt asked twice, and two that part near their end; a few hundred tokens each."""


@attrs.frozen
class Instance:
    """One instance's answer and counts.

    Attributes:
        info: What it is.
        answer: Its answer.
        cold: Counts of its cold tier.
        sidecar: Counts of the state beside the blocks.
        fingerprint: What its objects are named after; empty without a cold tier.
    """

    info: ModelInfo
    answer: Completion
    cold: ColdCacheStats
    sidecar: ColdSidecarStats
    fingerprint: str

    @property
    def has_state(self) -> bool:
        """Whether its family keeps state beside the blocks."""
        return (
            self.info.family.build_sidecar_policy(self.info.config, self.info.dtype) is not None
        )


@attrs.frozen
class GateReport:
    """What the three instances did.

    Attributes:
        capture: The one that wrote.
        restore: The one that restored.
        baseline: The one without a cold tier.
    """

    capture: Instance
    restore: Instance
    baseline: Instance

    def failures(self) -> list[str]:
        """Return what is wrong, one sentence each; empty if the gate is passed."""
        restored, plain = self.restore, self.baseline
        checks = {
            "nothing was restored": restored.cold.hits == 0,
            "no prompt token came from disk": restored.answer.usage.restored_tokens == 0,
            "an object was corrupt": restored.cold.corruptions + self.capture.cold.corruptions,
            "an object could not be written": self.capture.cold.write_errors,
            "state was not installed": restored.has_state and not restored.sidecar.installed,
            "the answer from disk has another text": restored.answer.text != plain.answer.text,
            "the answer from disk has other tokens": (
                restored.answer.tokens != plain.answer.tokens
            ),
            "the baseline found something on disk": plain.answer.usage.restored_tokens,
        }
        return [sentence for sentence, failed in checks.items() if failed]

    def describe(self) -> str:
        """Return the figures, a line an instance."""
        lines: list[str] = []
        for name in ("capture", "restore", "baseline"):
            instance: Instance = getattr(self, name)
            usage, cold = instance.answer.usage, instance.cold
            lines.append(
                f"{name:8}  prompt {usage.prompt_tokens}, cached {usage.cached_tokens}, "
                f"restored {usage.restored_tokens}, answered {usage.completion_tokens}; "
                f"hits {cold.hits}, misses {cold.misses}, written {cold.bytes_written} bytes, "
                f"corruptions {cold.corruptions}, installs {instance.sidecar.installed}"
            )
        return "\n".join(lines)

    @property
    def figures(self) -> Figures:
        """What a certificate records."""
        usage = self.restore.answer.usage
        return Figures(
            prompt_tokens=usage.prompt_tokens,
            restored_tokens=usage.restored_tokens,
            hits=self.restore.cold.hits,
            corruptions=self.restore.cold.corruptions,
            installs=self.restore.sidecar.installed,
            answer_tokens=usage.completion_tokens,
        )


def run_case(
    path: Path,
    case: GateCase,
    *,
    max_tokens: int = _ANSWER_TOKENS,
    settings: Mapping[str, Any] | None = None,
) -> GateReport:
    """Run the three instances on a checkpoint.

    Args:
        path: What `resolve_checkpoint` returned.
        case: The prompts.
        max_tokens: Length of the answers.
        settings: As in `neve.load`, for all instances.

    Raises:
        NeveError: The checkpoint cannot be loaded, or its caches cannot be written.
    """
    options = dict(settings or {})
    # an interrupt may neither lose the folder nor fall into its removal
    with (
        interrupts.deferred(),
        tempfile.TemporaryDirectory(prefix="neve-gate-") as folder,
    ):
        store = Path(folder)

        def persistent() -> Model:
            return load_for_gate(path, store, **options)

        capture = _run(persistent, case.capture, max_tokens)
        restore = _run(persistent, case.restore, max_tokens)
    options["persist_paged_cache"] = False
    return GateReport(
        capture, restore, _run(lambda: load(path, **options), case.restore, max_tokens)
    )


def _run(open_model: Callable[[], Model], prompt: Prompt, max_tokens: int) -> Instance:
    with open_model() as model:
        identified = model.wait_identified()
        answer = model.generate(prompt, max_tokens=max_tokens)
        model.flush()
        stats, fingerprint = model.stats(), model.fingerprint() if identified else ""
        return Instance(model.info, answer, stats.cold, stats.sidecar, fingerprint)


def certify(
    source: str | Path,
    *,
    cases: Sequence[GateCase] = CASES,
    max_tokens: int = _ANSWER_TOKENS,
    report: Callable[[GateReport], None] = lambda _: None,
    **settings: Any,
) -> Path:
    """Run the gate on a checkpoint and write down that its family passed it.

    The family may then persist on this machine, once it is named in `certified_families`.

    Args:
        source: As in `neve.load`.
        cases: Prompts, at least one pair.
        max_tokens: Length of the answers.
        report: Is told each case's figures before they are judged.
        **settings: As in `neve.load`.

    Returns:
        The file.

    Raises:
        RequestError: An argument is of the wrong type.
        GateFailedError: A case failed; nothing was written.
        NeveError: As `neve.load`.
    """
    path = resolve_checkpoint(source)
    max_tokens = integer("max_tokens", max_tokens, 1)
    report = function("report", report)
    cases = items("cases", cases, GateCase, "one GateCase or more")
    if not cases:
        raise wrong("cases", cases, "one GateCase or more")
    reports: list[GateReport] = []
    for case in cases:
        reports.append(run_case(path, case, max_tokens=max_tokens, settings=settings))
        report(reports[-1])
        failures = reports[-1].failures()
        if failures:
            raise GateFailedError(reports[-1].restore.info.family.name, failures)
    with interrupts.deferred():
        return _write_evidence(reports)


def _write_evidence(reports: Sequence[GateReport]) -> Path:
    info = reports[-1].restore.info
    evidence = Evidence(
        family=info.family.name,
        distribution=info.family.info.distribution,
        plugin_version=info.family.version,
        state_version=info.family.info.state_version,
        model_type=info.model_type,
        fingerprint=reports[0].restore.fingerprint,
        neve_version=_version(),
        date=datetime.now(UTC).date().isoformat(),
        figures=reports[-1].figures,
    )
    directory = evidence_dir(info.settings.cold.cold_evidence_dir)
    return write_evidence(directory, evidence)


def _version() -> str:
    from importlib.metadata import version

    return version("neve")
