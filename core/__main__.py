"""`python -m neve` is the program `neve`."""

from __future__ import annotations

from .cli.main import main

if __name__ == "__main__":
    main()
