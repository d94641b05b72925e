from __future__ import annotations

import math
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.coldtier.stats import ColdCacheStats, ColdSidecarStats
from neve.kvcache.stats import CacheStats, GroupStats
from neve.scheduler.telemetry import SchedulerCounters, SchedulerStats
from neve.telemetry.prometheus import Metric, Sample, field_help, from_stats, render

TYPES = (ColdCacheStats, ColdSidecarStats, SchedulerStats, CacheStats, GroupStats)
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def unescape(text: str, known: str) -> str:
    """Undo the escapes of a text in which each of `known` may stand behind a backslash."""
    out, rest = "", iter(text)
    for char in rest:
        if char == "\\":
            char = next(rest)
            assert char in known, f"unknown escape {char!r}"
            char = "\n" if char == "n" else char
        out += char
    return out


def parse_labels(text: str) -> tuple[dict[str, str], str]:
    """Return the labels at the head of a sample's text, and what follows them."""
    labels: dict[str, str] = {}
    if not text.startswith("{"):
        return labels, text
    text = text[1:]
    while not text.startswith("}"):
        name, text = text.split('="', 1)
        end = 0
        while text[end] != '"':
            end += 2 if text[end] == "\\" else 1
        assert name not in labels
        labels[name] = unescape(text[:end], '\\n"')
        text = text[end + 1 :].removeprefix(",")
    return labels, text[1:]


def parse(text: str) -> dict[str, dict[str, Any]]:
    """Return name -> help, kind and samples; a small reader, written from the format."""
    metrics: dict[str, dict[str, Any]] = {}
    current, helps = "", {}
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            name, _, sentence = line[7:].partition(" ")
            helps[name] = unescape(sentence, "\\n")
        elif line.startswith("# TYPE "):
            current, kind = line[7:].split(" ")
            assert current not in metrics, "one TYPE line a name"
            metrics[current] = {"help": helps.get(current), "kind": kind, "samples": []}
        else:
            head = NAME.match(line)
            assert head, line
            labels, rest = parse_labels(line[head.end() :])
            assert head[0].startswith(current), "a metric's samples stand together"
            sample = (head[0], labels, float(rest.removeprefix(" ")))
            metrics[current]["samples"].append(sample)
    return metrics


def scheduler_stats(**changes: Any) -> SchedulerStats:
    counts = attrs.asdict(SchedulerCounters()) | changes
    names = [field.name for field in attrs.fields(SchedulerStats)]
    return SchedulerStats(**{name: counts.get(name, 0) for name in names})


def test_a_field_is_a_metric() -> None:
    """TE-4: a count ends in _total, a gauge and a bool do not, a text is no metric."""
    stats = ColdCacheStats(enabled=True, root="/x", quota_bytes=100, hits=3)
    parsed = parse(render(from_stats("neve_cold", stats, gauges={"quota_bytes"})))

    assert parsed["neve_cold_hits_total"] == {
        "help": "Blocks that were read, verified and published.",
        "kind": "counter",
        "samples": [("neve_cold_hits_total", {}, 3.0)],
    }
    assert parsed["neve_cold_enabled"]["kind"] == "gauge"
    assert parsed["neve_cold_enabled"]["samples"] == [("neve_cold_enabled", {}, 1.0)]
    assert parsed["neve_cold_quota_bytes"]["kind"] == "gauge"
    assert list(parsed) == [
        "neve_cold_enabled",
        "neve_cold_quota_bytes",
        "neve_cold_hits_total",
        "neve_cold_misses_total",
        "neve_cold_enqueued_total",
        "neve_cold_queue_drops_total",
        "neve_cold_bytes_written_total",
        "neve_cold_bytes_restored_total",
        "neve_cold_evictions_total",
        "neve_cold_corruptions_total",
        "neve_cold_write_errors_total",
        "neve_cold_restore_declines_total",
    ]


def test_a_mapping_has_a_sample_for_each_key() -> None:
    """TE-4: a histogram by rows becomes samples with a label, beside those of all samples."""
    stats = scheduler_stats(decode_batch_occupancy_hist={1: 10, 3: 2})
    metrics = from_stats(
        "neve_scheduler",
        stats,
        key_labels={"decode_batch_occupancy_hist": "rows"},
        labels={"model": "tiny"},
    )
    name = "neve_scheduler_decode_batch_occupancy_hist_total"

    assert parse(render(metrics))[name]["samples"] == [
        (name, {"model": "tiny", "rows": "1"}, 10.0),
        (name, {"model": "tiny", "rows": "3"}, 2.0),
    ]


def test_fields_that_hold_no_numbers_are_left_out() -> None:
    """TE-4: what is nested is asked for itself; None is no value."""

    @attrs.frozen
    class Mixed:
        groups: tuple[int, ...] = (1,)
        text: str = "x"
        nothing: int | None = None
        names: dict[str, str] = attrs.field(factory=lambda: {"a": "b"})
        kernels: dict[str, int] = attrs.field(factory=dict)
        share: float = 0.5

    names = [metric.name for metric in from_stats("neve", Mixed())]

    assert names == ["neve_kernels_total", "neve_share_total"]


@pytest.mark.parametrize("cls", TYPES)
def test_every_field_is_explained(cls: type[attrs.AttrsInstance]) -> None:
    """TE-4: a help text is the field's line in its type's docstring, and none is missing."""
    texts = field_help(cls)

    assert list(texts) == [field.name for field in attrs.fields(cls)]
    assert all(text.endswith((".", ":")) for text in texts.values())


def test_a_help_text_may_take_several_lines() -> None:
    """TE-4: a continued line of a docstring is one sentence; a section ends it."""

    class Stats:
        """Count.

        Attributes:
            hits: Blocks that
                were found: all.
            misses: Others.

        Returns:
            nothing: No field.
        """

    assert field_help(Stats) == {"hits": "Blocks that were found: all.", "misses": "Others."}


def test_a_type_without_a_docstring_still_counts() -> None:
    """TE-4: an interpreter that drops docstrings costs the help texts, not the metrics."""

    @attrs.frozen
    class Bare:
        hits: int = 2

    assert render(from_stats("neve", Bare())) == (
        "# TYPE neve_hits_total counter\nneve_hits_total 2\n"
    )


def test_two_models_share_a_metric() -> None:
    """TE-4: samples of one name stand together, under one HELP and one TYPE line."""
    metrics = [
        metric
        for model in ("a", "b")
        for metric in from_stats("neve", ColdSidecarStats(), labels={"model": model})
    ]
    text = render(metrics)

    assert text.count("# TYPE neve_installed_total counter\n") == 1
    assert [labels for _, labels, _ in parse(text)["neve_installed_total"]["samples"]] == [
        {"model": "a"},
        {"model": "b"},
    ]


def test_a_value_is_written_as_the_format_says() -> None:
    """TE-4: integers are whole, and the three values that are no numbers have names."""
    values = (2**70, True, 0.1, math.nan, math.inf, -math.inf)
    samples = [Sample(value, {"i": str(i)}) for i, value in enumerate(values)]
    lines = render([Metric("x", "gauge", "", samples)]).splitlines()

    assert [line.split(" ")[1] for line in lines[1:]] == [
        "1180591620717411303424",
        "1",
        "0.1",
        "NaN",
        "+Inf",
        "-Inf",
    ]


def test_a_histogram_has_buckets_sum_and_count() -> None:
    """TE-4: a histogram's samples bear its name with a suffix."""
    samples = [
        Sample(1, {"le": "10"}, "_bucket"),
        Sample(3, {"le": "+Inf"}, "_bucket"),
        Sample(70.5, suffix="_sum"),
        Sample(3, suffix="_count"),
    ]

    assert render([Metric("ttft_ms", "histogram", "Time.", samples)]) == (
        "# HELP ttft_ms Time.\n"
        "# TYPE ttft_ms histogram\n"
        'ttft_ms_bucket{le="10"} 1\n'
        'ttft_ms_bucket{le="+Inf"} 3\n'
        "ttft_ms_sum 70.5\n"
        "ttft_ms_count 3\n"
    )


@given(
    value=st.text(st.characters(exclude_categories=["Cs"])),
    sentence=st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    number=st.floats(allow_nan=False),
)
def test_any_text_survives(value: str, sentence: str, number: float) -> None:
    """TE-4: label values and help texts are escaped so that a reader gets them back."""
    samples = [Sample(number, {"model": value, "other": "1"}), Sample(1, {"model": "b"})]
    parsed = parse(render([Metric("x", "gauge", sentence, samples)]))

    assert parsed == {
        "x": {
            "help": sentence,
            "kind": "gauge",
            "samples": [
                ("x", {"model": value, "other": "1"}, number),
                ("x", {"model": "b"}, 1.0),
            ],
        }
    }


def test_undecodable_text_becomes_readable() -> None:
    """TE-4: a path that is no UTF-8 does not stop the page."""
    text = render([Metric("x", "gauge", "", [Sample(1, {"model": "a\udcff"})])])

    assert text.encode() == b'# TYPE x gauge\nx{model="a?"} 1\n'


@pytest.mark.parametrize("name", ["", "1x", "a-b", "a b", "x\n", "é"])
def test_a_name_is_checked(name: str) -> None:
    """TE-4: a metric or a label that no reader would take is refused."""
    with pytest.raises(ValueError, match="metric name"):
        Metric(name, "gauge", "", ())
    with pytest.raises(ValueError, match="label name"):
        Sample(1, {name: "x"})


@pytest.mark.parametrize("name", ["__name__", "a:b"])
def test_a_label_name_is_narrower(name: str) -> None:
    """TE-4: colons and two leading underscores are not for labels."""
    with pytest.raises(ValueError, match="label name"):
        Sample(1, {name: "x"})


@pytest.mark.parametrize(
    ("kind", "sample"),
    [
        ("gauge", Sample(1, suffix="_sum")),
        ("histogram", Sample(1)),
        ("histogram", Sample(1, suffix="_bucket")),
        ("histogram", Sample(1, {"le": "1"}, "_count")),
    ],
)
def test_samples_fit_their_metric(kind: Any, sample: Sample) -> None:
    """TE-4: suffixes are for histograms, and the label le for their buckets."""
    with pytest.raises(ValueError, match=r"^x: "):
        Metric("x", kind, "", [sample])


def test_metrics_of_one_name_must_agree() -> None:
    """TE-4: one name with two kinds, or one sample twice, is refused."""
    gauge = Metric("x", "gauge", "", [Sample(1)])
    with pytest.raises(ValueError, match="different kind"):
        render([gauge, Metric("x", "counter", "", [])])
    with pytest.raises(ValueError, match="two samples"):
        render([gauge, gauge])
    assert render([gauge, Metric("x", "gauge", "", [Sample(2, {"a": "b"})])])


def test_a_wrong_field_name_is_refused() -> None:
    """TE-4: a gauge that no field is called was renamed, and would turn into a counter."""
    with pytest.raises(ValueError, match="ColdCacheStats has no field quota"):
        from_stats("neve", ColdCacheStats(), gauges={"quota"})
    with pytest.raises(ValueError, match="SchedulerStats has no field hist"):
        from_stats("neve", scheduler_stats(), key_labels={"hist": "rows"})
    with pytest.raises(ValueError, match="'model'"):
        from_stats(
            "neve",
            scheduler_stats(),
            key_labels={"decode_batch_occupancy_hist": "model"},
            labels={"model": "a"},
        )


def test_the_page_names_the_gauges(documented) -> None:
    """TE-4: docs/telemetry.md names each type's prefix, and gauges that are fields."""
    gauges = {kind: names for _, (kind,), names in documented("Prometheus")}

    assert set(gauges) == {cls.__name__ for cls in TYPES}
    for cls in TYPES:
        assert set(gauges[cls.__name__]) <= {field.name for field in attrs.fields(cls)}


def test_the_page_names_every_counter(documented) -> None:
    """TE-1: docs/telemetry.md explains each field of both types of the cold tier."""
    named = sorted(name for row in documented("Counters") for name in row[0])

    assert named == sorted(f.name for cls in TYPES[:2] for f in attrs.fields(cls))
