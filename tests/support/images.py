"""Small images of each format, made by hand: their headers and their ends are as the formats demand."""

from __future__ import annotations

import struct
import zlib


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, shade: int = 0, packed: bytes = b"") -> bytes:
    """A PNG of one shade of grey, which decodes if it is small. `packed`: other bytes in the place of its pixels."""
    rows = (b"\0" + bytes([shade]) * width) * height if width * height <= 1_000_000 else b""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", packed or zlib.compress(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def jpeg(width: int, height: int) -> bytes:
    thumbnail = b"\xff\xe1" + struct.pack(">H", 10) + b"\xff\xd8\xff\xd9" + bytes(4)
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    scan = b"\xff\xda" + struct.pack(">HB", 8, 1) + b"\1\0\0\x3f\0" + b"\x12\x34"
    return b"\xff\xd8" + thumbnail + b"\xff" + frame + scan + b"\xff\xd9"


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0" + b"\x2c" + bytes(9) + b"\2\2\x4c\1\0" + b";"


def _riff(kind: bytes, data: bytes) -> bytes:
    chunk = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunk)) + chunk


def webp_lossy(width: int, height: int) -> bytes:
    return _riff(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height) + bytes(10))


def webp_lossless(width: int, height: int) -> bytes:
    return _riff(b"VP8L", b"\x2f" + struct.pack("<I", width - 1 | (height - 1) << 14) + bytes(11))


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _riff(b"VP8X", bytes(4) + sides + bytes(6))
