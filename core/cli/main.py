"""The door of the program `neve`: Ctrl-C and the streams before anything large is imported.

Exit codes: 0 done, 1 could not be done, 2 wrong input, 130 interrupted, 141 nobody reads on.
"""

from __future__ import annotations

import sys
from typing import NoReturn

from .. import interrupts
from . import streams


def main() -> NoReturn:
    """Run the command that the arguments name, and end the process with its exit code."""
    interrupts.end_at_once("interrupted")
    streams.secure()
    try:
        code = _run()
        streams.flush()
    except streams.OutputError as error:
        streams.abandon()
        code = error.exit_code
        if error.sentence is not None:
            sys.stderr.write(f"Error: {error.sentence}\n")
    if code == interrupts.INTERRUPTED:
        interrupts.exit_now()
    interrupts.ignore()
    sys.exit(code)


def _run() -> int:
    """Return the exit code of the command."""
    from .program import program

    try:
        program(prog_name="neve")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    main()
