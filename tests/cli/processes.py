"""The program in processes of its own: every command, on small work."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from neve.coldtier.inspection.handle import cold_store
from neve.coldtier.objects.format import KvGeometry, encode, encode_tokens, kv_layout
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.directory import FORMAT
from neve.coldtier.store.quota import StoreLimits
from neve.coldtier.store.store import ColdStore
from neve.contract.page_format import keys_and_values
from neve.ids import ColdKey, Fingerprint

CHECKPOINT = str(Path(__file__).parents[2] / "checkpoints" / "qwen3")
_SHORT = ("--max-tokens", "4")

LIGHT = {
    "families": ("families",),
    "doctor": ("doctor",),
    "cache ls": ("cache", "ls"),
    "cache stats": ("cache", "stats"),
    "cache verify": ("cache", "verify"),
    "cache prune": ("cache", "prune", "--to", "1GB"),
    "cache clear": ("cache", "clear", "--yes"),
    "cache export": ("cache", "export", "bundle.tar", "--model-prefix", "a1"),
    "cache import": ("cache", "import", "objects.tar"),
    "cache explain": ("cache", "explain", "Hi", "--model", CHECKPOINT),
}
"""Commands that load no model, with their arguments."""

LOADING = {
    "doctor of a checkpoint": ("doctor", CHECKPOINT),
    "generate": ("generate", CHECKPOINT, "Hi", *_SHORT),
    "chat": ("chat", CHECKPOINT, *_SHORT),
    "bench": (
        *("bench", CHECKPOINT, "--prompt-tokens", "32", "--new-tokens", "8"),
        *("--requests", "2", "--repetitions", "1"),
    ),
    "certify": ("certify", CHECKPOINT, *_SHORT),
}
"""Those that load one."""

DEMO = ("demo", CHECKPOINT)

_PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from neve.cli.main import main
os.write(int(sys.argv.pop(1)), b"!")
main()
"""


@attrs.frozen
class Folders:
    """Where a process works: its working directory, store and temporary files."""

    root: Path

    @property
    def temporary(self) -> Path:
        return self.root / "tmp"

    @property
    def store(self) -> Path:
        return self.root / "store"

    def fill(self) -> None:
        """Write a few objects into the store, and a bundle of them beside it."""
        opened = ColdStore.open(self.store / FORMAT, StoreLimits(min_free_bytes=0), Counters())
        payload = [encode_tokens([7] * 4), bytes(32), bytes(32)]
        layout = kv_layout(KvGeometry(4, 1, keys_and_values(1, 2, 2), "F32"))
        for i in range(3):
            name = ObjectName(ColdKey(hashlib.sha256(bytes([i])).digest()), ColdGroup.KV)
            parts = encode(name, Fingerprint(b"\xa1" * 32), layout, payload)
            opened.write(name, parts, 1_700_000_000 * 10**9)
        opened.close()
        with cold_store(self.store) as store:
            store.export(self.root / "objects.tar", store.objects())

    def copy(self, root: Path) -> Folders:
        """Return a copy, to be worked in once."""
        shutil.copytree(self.root, root)
        return Folders(root)

    def environment(self) -> Mapping[str, str]:
        for folder in (self.temporary, self.store):
            folder.mkdir(parents=True, exist_ok=True)
        return {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "MLX_COLD_CACHE_DIR": str(self.store),
            "MLX_COLD_EVIDENCE_DIR": str(self.root / "evidence"),
        }


def start(
    arguments: tuple[str, ...], folders: Folders, redirection: str = "", **options: Any
) -> subprocess.Popen[bytes]:
    """Start the program and return its process when its `main` is about to be called.

    What happens before is Python's own start, and the import of next to nothing.
    """
    ready, write = os.pipe()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    environment = folders.environment()
    program = (sys.executable, "-c", _PROGRAM, str(write))
    message = folders.root / "message.txt"
    message.write_text("Hi\n")
    with message.open("rb") as stdin:
        process: Any = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *program, *arguments],
            cwd=folders.root,
            env=environment,
            pass_fds=[write],
            stdin=stdin,
            **pipes,
        )
    os.close(write)
    with suppress(OSError):
        os.read(ready, 1)
    os.close(ready)
    return process
