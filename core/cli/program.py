"""The commands of the program `neve`, and how their errors end it."""

from __future__ import annotations

from typing import Any

import click

from ..errors import NeveError, RequestError, SettingsError
from ..interrupts import INTERRUPTED
from ..log import origin
from .bench import bench
from .cache.command import cache
from .certify import certify
from .chat import chat
from .demo.command import demo
from .doctor.command import doctor
from .families import families
from .faults import error_text
from .generate import generate
from .options import VERBOSE, verbose_option
from .output import note

_NO_BACK_END = (
    "MLX cannot be imported ({error}); on Linux it needs a back end: "
    "pip install 'neve[cpu]' or 'neve[cuda]', then see `neve doctor`"
)


class _WrongInputError(click.ClickException):
    exit_code = 2


class _Program(click.Group):
    """A group whose commands end with a sentence where a library would raise."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit code 2 means wrong input, 1 that it could not be done."""
        try:
            return super().invoke(ctx)
        except (SettingsError, RequestError) as error:
            raise _WrongInputError(error_text(error)) from error
        except NeveError as error:
            if ctx.meta.get(VERBOSE) and error.__cause__ is not None:
                note(f"caused by {origin(error.__cause__)}")
            raise click.ClickException(error_text(error)) from error
        except ImportError as error:
            if "mlx" not in f"{error.name} {error}":
                raise
            raise click.ClickException(_NO_BACK_END.format(error=error)) from error
        except KeyboardInterrupt:
            note("interrupted")
            ctx.exit(INTERRUPTED)


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="neve")
@verbose_option
def program() -> None:
    """Run language models locally, and compute every prompt prefix once.

    MODEL is a folder, a .gguf file, or a repository of the hub: org/name, or
    org/name:file.gguf for one file of it.

    Exit codes: 0 done, 1 could not be done, 2 wrong input, 130 interrupted, 141 nobody reads
    the output any more.
    """


for _command in (generate, chat, demo, bench, families, cache, certify, doctor):
    program.add_command(_command)
