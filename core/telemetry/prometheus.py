"""Counters in the text format that Prometheus reads, version 0.0.4.

Names and help texts of metrics derive from the counters' own classes.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import attrs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Suffix: TypeAlias = Literal["", "_bucket", "_sum", "_count"]

_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")  # Prometheus reserves `__`


def _check_labels(_: Any, __: Any, labels: Mapping[str, str]) -> None:
    for name in labels:
        if not _LABEL_NAME.fullmatch(name):
            raise ValueError(f"label name {name!r} must be a word that begins without `__`")


@attrs.frozen
class Sample:
    """One value of a metric.

    Attributes:
        value: The value.
        labels: Labels that distinguish the sample from the metric's other samples.
        suffix: Suffix of the metric's name; required for histograms, empty for other kinds.
    """

    value: float
    labels: Mapping[str, str] = attrs.field(factory=dict, validator=_check_labels)
    suffix: Suffix = ""


@attrs.frozen
class Metric:
    """A metric with its values; building one checks the name and every suffix.

    Attributes:
        name: Name in Prometheus.
        kind: Counter, gauge or histogram.
        help: Help text; empty for none.
        samples: Values of the metric.
    """

    name: str
    kind: Kind
    help: str
    samples: tuple[Sample, ...] = attrs.field(converter=tuple)

    def __attrs_post_init__(self) -> None:
        if not _METRIC_NAME.fullmatch(self.name):
            raise ValueError(f"metric name {self.name!r} must be letters, digits, _ and :")
        for sample in self.samples:
            if (self.kind == "histogram") != bool(sample.suffix):
                raise ValueError(f"{self.name}: a {self.kind} has no sample {sample.suffix!r}")
            if self.kind == "histogram" and (sample.suffix == "_bucket") != (
                "le" in sample.labels
            ):
                raise ValueError(f"{self.name}: every bucket has a label le, and nothing else")


@functools.cache
def field_help(cls: type[attrs.AttrsInstance]) -> Mapping[str, str]:
    """Return the `Attributes:` texts of a type's docstring by field name."""
    section = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.finditer(r"^ {4}(\w+):((?:.*\n?)(?: {5,}.*\n?)*)", section, re.MULTILINE)
    return {entry[1]: " ".join(entry[2].split()) for entry in entries}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _samples(value: Any, labels: Mapping[str, str], key_label: str) -> list[Sample] | None:
    """Return a field's samples, or None if it holds no numbers."""
    if _is_number(value):
        return [Sample(value, labels)]
    if not isinstance(value, Mapping) or not all(map(_is_number, value.values())):
        return None
    if key_label in labels:
        raise ValueError(f"label {key_label!r} is given and would name a mapping's key too")
    return [Sample(number, {**labels, key_label: str(key)}) for key, number in value.items()]


def from_stats(
    prefix: str,
    stats: attrs.AttrsInstance,
    *,
    gauges: Collection[str] = (),
    key_labels: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
) -> list[Metric]:
    """Return a metric for each field that holds a number or a mapping to numbers.

    A field becomes the counter `<prefix>_<field>_total`. Fields in `gauges` and bools become
    the gauge `<prefix>_<field>`. Fields of other types are left out.

    Args:
        prefix: First part of every metric's name.
        stats: An instance with the present values.
        gauges: Fields whose values may fall.
        key_labels: Mapping field -> name of the label for its keys; `key` by default.
        labels: Labels of every sample, e.g. the model's name.

    Raises:
        ValueError: `gauges` or `key_labels` name a field that does not exist.
    """
    cls, key_labels, labels = type(stats), key_labels or {}, labels or {}
    names = [field.name for field in attrs.fields(cls)]
    unknown = {*gauges, *key_labels}.difference(names)
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
    metrics: list[Metric] = []
    for name in names:
        value = getattr(stats, name)
        samples = _samples(value, labels, key_labels.get(name, "key"))
        if samples is None:
            continue
        is_gauge = name in gauges or isinstance(value, bool)
        kind, suffix = ("gauge", "") if is_gauge else ("counter", "_total")
        metrics.append(
            Metric(f"{prefix}_{name}{suffix}", kind, field_help(cls).get(name, ""), samples)
        )
    return metrics


def _utf8(text: str) -> str:
    """Replace characters without a UTF-8 form, e.g. the undecodable part of a path."""
    return text.encode("utf-8", "replace").decode()


def _escape_help(text: str) -> str:
    return _utf8(text).replace("\\", "\\\\").replace("\n", "\\n")


def _escape_label(text: str) -> str:
    return _escape_help(text).replace('"', '\\"')


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # a bool too
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def _sample_line(name: str, sample: Sample) -> str:
    pairs = ",".join(f'{key}="{_escape_label(text)}"' for key, text in sample.labels.items())
    return f"{name}{sample.suffix}{f'{{{pairs}}}' if pairs else ''} {_number(sample.value)}\n"


def _merged(metrics: Iterable[Metric]) -> Iterable[Metric]:
    """Join metrics of one name, e.g. of two models: the format allows one group a name."""
    merged: dict[str, Metric] = {}
    for metric in metrics:
        first = merged.get(metric.name)
        if first is None:
            merged[metric.name] = metric
            continue
        if (first.kind, first.help) != (metric.kind, metric.help):
            raise ValueError(f"{metric.name} is two metrics of different kind or help")
        merged[metric.name] = attrs.evolve(first, samples=first.samples + metric.samples)
    return merged.values()


def _check_distinct(metric: Metric) -> None:
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for sample in metric.samples:
        identity = (sample.suffix, frozenset(sample.labels.items()))
        if identity in seen:
            raise ValueError(f"{metric.name} has two samples with labels {dict(sample.labels)}")
        seen.add(identity)


def render(families: Iterable[Metric]) -> str:
    """Return metrics as text, with metrics of one name in one group.

    Raises:
        ValueError: Two samples agree in name and labels, or two metrics of one name differ in
            kind or help.
    """
    parts: list[str] = []
    for metric in _merged(families):
        _check_distinct(metric)
        if metric.help:
            parts.append(f"# HELP {metric.name} {_escape_help(metric.help)}\n")
        parts.append(f"# TYPE {metric.name} {metric.kind}\n")
        parts += [_sample_line(metric.name, sample) for sample in metric.samples]
    return "".join(parts)
