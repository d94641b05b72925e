from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neve.metal.runtime import elf_alias

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ELF is what Linux loads")


@pytest.fixture
def address() -> Iterator[int]:
    """The address of a function that returns 7."""
    function = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)
    yield ctypes.cast(function, ctypes.c_void_p).value or 0
    del function  # until here the address is good


def test_every_name_reaches_its_function(address: int):
    """The whole process finds the function under each of its new names."""
    elf_alias.expose({"neve_test_first": address, "neve_test_second": address})
    process = ctypes.CDLL(None)

    assert process.neve_test_first() == 7
    assert process.neve_test_second() == 7


def test_other_names_stay_unknown(address: int):
    """A name that was not given is looked up to the chain's end and not found."""
    elf_alias.expose({"neve_test_known": address})

    assert not hasattr(ctypes.CDLL(None), "neve_test_unknown")


def test_no_file_stays_behind(address: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The image holds addresses of this process and is of no use to another."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    elf_alias.expose({"neve_test_file": address})

    assert list(tmp_path.iterdir()) == []


def test_nothing_is_executable():
    """No segment of the image can be executed, and it asks for no executable stack."""
    header = Path("/proc/self/exe").read_bytes()[:64]
    image = elf_alias.build_image({"name": 1}, header)
    flags = [int.from_bytes(image[at + 4 : at + 8], "little") for at in (64, 120, 176)]

    assert flags == [6, 6, 6]


@pytest.mark.parametrize(
    "header", [b"", b"#!/bin/sh\n", b"\x7fELF\x01\x01", b"\x7fELF\x02\x02"]
)
def test_other_machines_are_refused(header: bytes):
    """Only 64-bit little-endian ELF has this layout."""
    with pytest.raises(OSError, match="64-bit little-endian"):
        elf_alias.build_image({"name": 1}, header)
