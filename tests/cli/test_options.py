"""Options that commands share."""

from __future__ import annotations

import click
import pytest
import structlog
from click.testing import CliRunner

from neve.cli.options import (
    sampling_fields,
    sampling_options,
    settings_option,
    verbose_option,
)


@click.group()
@verbose_option
def program():
    """Stand in for `neve`."""


@program.command()
@settings_option
@verbose_option
def show(settings):
    """Show the settings."""
    click.echo(repr(settings))
    structlog.get_logger().info("seen")


def invoke(*arguments):
    return CliRunner().invoke(program, arguments)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ("null", None),
        ("float16", "float16"),
        ('"3"', "3"),
        ("NaN", "NaN"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_values_are_read_as_json_or_as_they_stand(text, value):
    """UX-2: numbers, true, false and null are JSON's, everything else is text."""
    done = invoke("show", "--set", f"key={text}")

    assert done.stdout == f"{ {'key': value}!r}\n"


def test_settings_add_up_and_the_last_one_counts():
    """UX-2: --set may be repeated."""
    done = invoke("show", "--set", "a=1", "--set", "b=2", "--set", "a=3")

    assert done.stdout == "{'a': 3, 'b': 2}\n"


@pytest.mark.parametrize("pair", ["key", "=3", ""])
def test_malformed_settings(pair):
    """UX-2: what is no KEY=VALUE is quoted."""
    done = invoke("show", "--set", pair)

    assert done.exit_code == 2
    assert f"{pair!r} is not of the form KEY=VALUE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "logged"), [(["show"], False), (["-v", "show"], True), (["show", "-v"], True)]
)
def test_verbose_may_stand_on_either_side(arguments, logged):
    """UX-2: -v shows what is logged at INFO, before and behind the command's name."""
    assert ("seen" in invoke(*arguments).stderr) == logged


def test_sampling_defaults_are_the_librarys():
    """UX-2: what was not given is not passed on."""
    given = {"max_tokens": 5, "temperature": None, "top_k": 0, "stop": ()}

    assert sampling_fields(given) == {"max_tokens": 5, "top_k": 0}


def test_sampling_faults_name_the_option():
    """UX-2: a value out of range is refused before a model is loaded."""

    @click.command()
    @sampling_options(max_tokens=1)
    def sample(**options):
        sampling_fields(options)

    done = CliRunner().invoke(sample, ["--top-p", "2"])

    assert done.exit_code == 2
    assert "Invalid value for '--top-p': must be a number from 0 to 1, got 2.0" in done.stderr
