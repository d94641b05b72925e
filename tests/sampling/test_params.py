import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neve.errors import InvalidSamplingError, RequestError
from neve.sampling.params import SamplingParams

FLOAT_RANGES = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}
INTEGER_RANGES = {
    "max_tokens": (1, None),
    "top_k": (0, None),
    "logprobs": (0, 20),
    "seed": (0, 2**64 - 1),
}


def accepted(**values: Any) -> SamplingParams:
    return SamplingParams(**values)


def refused(**values: Any) -> InvalidSamplingError:
    with pytest.raises(InvalidSamplingError) as caught:
        SamplingParams(**values)
    return caught.value


def test_defaults():
    """Without any wish a request is greedy, unpenalised and ends after 256 tokens."""
    params = SamplingParams()

    assert params.greedy
    assert not params.penalised
    assert params.max_tokens == 256
    assert params.seed is None
    assert params.stop == ()
    assert params.logit_bias == {}


@pytest.mark.parametrize("field", FLOAT_RANGES)
@given(value=st.floats() | st.integers())
def test_float_ranges(field: str, value: float):
    """A float field takes exactly the numbers of its range, integers too, no NaN."""
    low, high = FLOAT_RANGES[field]

    if low <= value <= high:
        assert getattr(accepted(**{field: value}), field) == value
    else:
        assert refused(**{field: value}).param == field


@pytest.mark.parametrize("field", INTEGER_RANGES)
@given(value=st.integers() | st.sampled_from([20, 21, 2**64 - 1, 2**64]))
def test_integer_ranges(field: str, value: int):
    """An integer field takes exactly the integers of its range; 0 is a seed."""
    low, high = INTEGER_RANGES[field]

    if low <= value and (high is None or value <= high):
        assert getattr(accepted(**{field: value}), field) == value
    else:
        assert refused(**{field: value}).param == field


@pytest.mark.parametrize("field", [*FLOAT_RANGES, *INTEGER_RANGES])
@pytest.mark.parametrize("value", [True, "1", [1], math.nan, math.inf, -math.inf])
def test_no_number(field: str, value: object):
    """Bools, texts, NaN and infinities are no numbers; the error names field and value."""
    error = refused(**{field: value})

    assert error.param == field
    assert error.got is value
    assert field in str(error)
    assert error.expected in str(error)


@pytest.mark.parametrize("field", ["top_k", "logprobs", "seed", "max_tokens"])
def test_no_float_for_an_integer(field: str):
    """An integer field refuses 1.0."""
    assert refused(**{field: 1.0}).param == field


@pytest.mark.parametrize("field", [*FLOAT_RANGES, "top_k", "logprobs", "stop", "logit_bias"])
def test_none_is_no_value(field: str):
    """Only max_tokens and seed may be None."""
    assert refused(**{field: None}).param == field
    assert SamplingParams(max_tokens=None, seed=None).max_tokens is None


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_ignore_eos_is_a_bool(value: object):
    """A flag is True or False and nothing that resembles it."""
    assert refused(ignore_eos=value).param == "ignore_eos"
    assert SamplingParams(ignore_eos=True).ignore_eos


@pytest.mark.parametrize(
    "biases",
    [{-1: 1}, {"7": 1}, {True: 1}, {1.0: 1}, {7: 101}, {7: -100.5}, {7: math.nan}, {7: True}],
)
def test_bad_biases(biases: object):
    """A bias goes from -100 to 100 and belongs to a token id."""
    assert refused(logit_bias=biases).param == "logit_bias"
    assert refused(logit_bias=[(7, 1.0)]).param == "logit_bias"


def test_biases_are_copied():
    """Whoever changes the mapping afterwards does not change the request."""
    biases = {7: -100.0, 8: 100}
    params = SamplingParams(logit_bias=biases)
    biases[9] = 1.0

    assert params.logit_bias == {7: -100.0, 8: 100}
    assert hash(params) == hash(SamplingParams(logit_bias={7: -100.0, 8: 100}))


def test_vocabulary():
    """Whoever knows the vocabulary may refuse biases on tokens that it lacks."""
    params = SamplingParams(logit_bias={7: 1.0})
    params.check_vocabulary(8)

    with pytest.raises(InvalidSamplingError, match="token ids below 7, got 7") as caught:
        params.check_vocabulary(7)
    assert caught.value.param == "logit_bias"


def test_stop():
    """One text or a sequence of texts; always a tuple afterwards."""
    given: list[Any] = ["END", ["a", "b"], ["a"] * 16]
    single, pair, most = (SamplingParams(stop=stop).stop for stop in given)

    assert single == ("END",)
    assert pair == ("a", "b")
    assert len(most) == 16


@pytest.mark.parametrize("stop", ["", ["a", ""], ["a"] * 17, [1], b"END", {"a"}, 3])
def test_bad_stop(stop: object):
    """Empty texts, more than 16 and what is no text are refused."""
    assert refused(stop=stop).param == "stop"


@pytest.mark.parametrize(
    ("values", "greedy"),
    [
        ({"temperature": 0.0, "top_k": 50}, True),
        ({"temperature": 1.0, "top_p": 0.0}, True),
        ({"temperature": 1.0, "top_k": 1}, True),
        ({"temperature": 1.0}, False),
        ({"temperature": 1e-9, "top_p": 1e-9, "top_k": 2}, False),
    ],
)
def test_greedy(values: dict[str, Any], greedy: bool):
    """Greedy means that the most likely token is the only one that can win."""
    assert SamplingParams(**values).greedy is greedy


@pytest.mark.parametrize(
    "values", [{"repetition_penalty": 1.1}, {"presence_penalty": -1}, {"frequency_penalty": 1}]
)
def test_penalised(values: dict[str, Any]):
    """Any of the three penalties asks for a history."""
    assert SamplingParams(**values).penalised


def test_error_is_a_request_error():
    """An API can answer from the error alone: it has a code and a parameter."""
    error = refused(top_p=2)

    assert isinstance(error, RequestError)
    assert error.code == "invalid_sampling"
    assert str(error) == "top_p must be a number from 0 to 1, got 2"


def test_pure():
    """Parameters are checked without MLX."""
    code = "import sys, neve.sampling.params; sys.exit('mlx.core' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
