"""Changes between versions of the hook specification, hook by hook."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .plan import HOOKSPEC_VERSION

CHANGES: Mapping[int, Mapping[str, str]] = {
    2: {
        "family_info": "state hook specification 2",
        "forward": (
            "return neve.contract.forward.ForwardOutput(logits, hidden), with logits None "
            "for no logit rows and hidden states at batch.taps (see neve.layers.taps); "
            "or leave the hook out if the model returns one, as a DecoderModel of "
            "neve.layers.decoder does"
        ),
        "build_model": (
            "have the model pass Scoring(scale, softcap, sinks) of neve.contract.forward to "
            "context.attend and context.attend_projected, in place of scale= and softcap="
        ),
        "model_shape": (
            "may be left out if the config has vocab_size, max_position_embeddings and "
            "num_hidden_layers"
        ),
        "build_sidecar_policy": "may be left out if the default from the cache layout fits",
        "cold_restore_eligibility": "may be left out if the default from the cache layout fits",
    },
}
"""Version -> hook -> the change that a plugin for the version before has to make."""


def changes_since(version: int, hooks: Collection[str]) -> Mapping[str, str] | None:
    """Return the changes that a plugin needs to reach the present version.

    Args:
        version: The version that the plugin was written for.
        hooks: Names of the hooks that the plugin implements.

    Returns:
        Hook -> change; None if the plugin's version is newer than this one, or was never used.
    """
    if not min(CHANGES) - 1 <= version < HOOKSPEC_VERSION:
        return None
    changes: dict[str, list[str]] = {}
    for later in range(version + 1, HOOKSPEC_VERSION + 1):
        for hook, change in CHANGES[later].items():
            if hook in hooks:
                changes.setdefault(hook, []).append(change)
    return {hook: "; then ".join(parts) for hook, parts in changes.items()}
