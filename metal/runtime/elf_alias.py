"""A shared object that gives functions of this process a second name.

OpenBLAS from a wheel names its functions `scipy_cblas_sgemm` and so on; MLX looks up
`cblas_sgemm`. Only a symbol table is missing. This module writes one: an ELF file without code,
whose *absolute* symbols are the addresses of the loaded functions.

    [0, 64)    file header    class, byte order, machine and flags are those of this process
    [64, 232)  segments       whole file readable and writable · dynamic section · plain stack
    then       symbols · hash · names · dynamic section

The addresses hold for one process, so the file has no name and ends with the process.
Sources: the System V ABI, chapters 4 and 5. glibc since 2.28 does not relocate absolute
symbols.
"""

from __future__ import annotations

import ctypes
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_ELF64_LITTLE_ENDIAN = b"\x7fELF\x02\x01"
_HEADER = struct.Struct("<16s2HI3QI6H")
_SEGMENT = struct.Struct("<2I6Q")
_SYMBOL = struct.Struct("<I2BH2Q")
_SHARED_OBJECT = 3
_LOAD, _DYNAMIC, _STACK = 1, 2, 0x6474E551
_READ_WRITE = 6
_PAGE = 0x10000  # the largest page of the machines that MLX runs on
_GLOBAL_FUNCTION, _ABSOLUTE = 0x12, 0xFFF1
_HASH, _NAMES, _SYMBOLS, _NAMES_SIZE, _SYMBOL_SIZE = 4, 5, 6, 10, 11

_FILES: list[IO[bytes]] = []
"""Unnamed files, open until the process ends. The dynamic linker identifies a library by its
path, here the number of the open file, so a number must not be reused. A killed process leaves
no file."""


def expose(addresses: Mapping[str, int]) -> None:
    """Define names for every library that is loaded from now on.

    Args:
        addresses: Name -> address of a function that stays loaded.

    Raises:
        OSError: The process is not a 64-bit little-endian ELF program, no temporary file
            can be written, or the dynamic linker does not understand absolute symbols.
    """
    with Path("/proc/self/exe").open("rb") as program:
        image = build_image(addresses, program.read(_HEADER.size))
    file = tempfile.TemporaryFile()  # noqa: SIM115  stays open
    _FILES.append(file)
    file.write(image)
    file.flush()
    path = f"/proc/self/fd/{file.fileno()}"
    _verify(ctypes.CDLL(path), addresses)
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _verify(library: ctypes.CDLL, addresses: Mapping[str, int]) -> None:
    for name, address in addresses.items():
        if ctypes.cast(library[name], ctypes.c_void_p).value != address:
            raise OSError(f"the dynamic linker moved the absolute symbol {name}")


def build_image(addresses: Mapping[str, int], program_header: bytes) -> bytes:
    """Return the bytes of a shared object that defines `addresses` and nothing else.

    Args:
        addresses: Name -> value of the absolute symbol.
        program_header: The first 64 bytes of a program of the target machine.

    Raises:
        OSError: The bytes are not the header of a 64-bit little-endian ELF file.
    """
    if not program_header.startswith(_ELF64_LITTLE_ENDIAN):
        raise OSError("not a 64-bit little-endian ELF file")
    names, symbols = _symbol_table(addresses)
    chain = _hash_chain(len(addresses))
    at_symbols = _HEADER.size + 3 * _SEGMENT.size
    at_chain = at_symbols + len(symbols)
    at_names = at_chain + len(chain)
    names += bytes(-(at_names + len(names)) % 8)
    at_dynamic = at_names + len(names)
    dynamic = _dynamic_section(at_chain, at_names, at_symbols, len(names))
    segments = _segments(at_dynamic, len(dynamic))
    return _header(program_header) + segments + symbols + chain + names + dynamic


def _symbol_table(addresses: Mapping[str, int]) -> tuple[bytes, bytes]:
    names, symbols = b"\0", bytes(_SYMBOL.size)  # symbol 0 is reserved
    for name, address in addresses.items():
        symbols += _SYMBOL.pack(len(names), _GLOBAL_FUNCTION, 0, _ABSOLUTE, address, 0)
        names += name.encode() + b"\0"
    return names, symbols


def _hash_chain(count: int) -> bytes:
    """Return a hash table of one bucket, whose chain holds all symbols and ends with 0."""
    following = [0, *range(2, count + 1), 0]
    return struct.pack(f"<{3 + len(following)}I", 1, len(following), 1, *following)


def _dynamic_section(chain: int, names: int, symbols: int, names_size: int) -> bytes:
    places = (_HASH, chain, _NAMES, names, _SYMBOLS, symbols)
    sizes = (_NAMES_SIZE, names_size, _SYMBOL_SIZE, _SYMBOL.size)
    return struct.pack("<12Q", *places, *sizes, 0, 0)


def _segments(at_dynamic: int, dynamic_size: int) -> bytes:
    end = at_dynamic + dynamic_size
    return b"".join(
        _SEGMENT.pack(kind, _READ_WRITE, start, start, start, size, size, align)
        for kind, start, size, align in (
            (_LOAD, 0, end, _PAGE),
            (_DYNAMIC, at_dynamic, dynamic_size, 8),
            (_STACK, 0, 0, 16),  # without this segment glibc makes the stack executable
        )
    )


def _header(program: bytes) -> bytes:
    ident, _, machine, version, _, _, _, flags, *_ = _HEADER.unpack(program)
    sizes = (_HEADER.size, _SEGMENT.size, 3, 0, 0, 0)
    kind = (_SHARED_OBJECT, machine, version)
    return _HEADER.pack(ident, *kind, 0, _HEADER.size, 0, flags, *sizes)
