"""The help texts as one page: `python -m neve.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from .program import program

_WIDTH = 80
_HEAD = "# The command line\n\nMade from the program's own help texts: `{command}`.\n"
COMMAND = "python -m neve.cli.reference > docs/cli.md"
"""What writes the page, in a checkout."""


def _contexts() -> Iterator[click.Context]:
    root = click.Context(
        program, info_name="neve", terminal_width=_WIDTH, **program.context_settings
    )
    yield root
    yield from _below(root, program)


def _below(parent: click.Context, group: click.Group) -> Iterator[click.Context]:
    for name in group.list_commands(parent):
        command = group.commands[name]
        context = click.Context(command, parent=parent, info_name=name)
        yield context
        if isinstance(command, click.Group):
            yield from _below(context, command)


def reference() -> str:
    """Return the page, in Markdown."""
    sections = (
        f"\n## {context.command_path}\n\n```text\n{context.get_help()}\n```\n"
        for context in _contexts()
    )
    return _HEAD.format(command=COMMAND) + "".join(sections)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
