"""Rules of images that models see: which bytes are one, which a provider takes, and what one costs.

An image is kept content (texts.py): the ledger has a reference in its place, and the bytes are in the task's workspace.
Only the headers are read: no image is decoded. A file that ends too soon counts as none, because a provider refuses a
whole request for it.

The limits are those of Anthropic, which are the narrowest (platform.claude.com/docs/en/build-with-claude/vision): 8,000
pixels a side, 5 MB an image, which is measured in base64; more than 20 images of a request may have 2,000 pixels a side
only, so no more are shown at once; 32 MB a request.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from struct import unpack_from
from typing import Any, Final, NamedTuple

from tenure.domain.models import ANTHROPIC, vendor_of
from tenure.domain.texts import KEPT_DIRECTORY, KeptContent, kept_as

PNG, JPEG, GIF, WEBP = MEDIA_TYPES = "image/png", "image/jpeg", "image/gif", "image/webp"
MAX_IMAGE_BYTES: Final = 5 * 1024 * 1024 // 4 * 3
MAX_SIDE: Final = 8000
MAX_PARTS: Final = 10_000
"""The chunks or segments that are looked at. An encoder makes some hundreds; millions would take seconds."""
MAX_SHOWN: Final = 20
MAX_SHOWN_BYTES: Final = 15 * 1024 * 1024
"""Of all images of a request; 20 MiB in base64, which leaves room for the rest of the conversation."""

KEPT: Final = "kept"
"""The type of a source that is a reference. No provider knows it: it is replaced before a request is sent."""

Block = Mapping[str, Any]


class NotAnImage(ValueError):  # noqa: N818  a fact about the bytes
    """The bytes cannot be shown to a model. The message says why."""


@dataclass(frozen=True, slots=True)
class Image:
    """A reference to an image: kept content, with its type and its size in pixels."""

    kept: KeptContent
    media_type: str
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class SubmittedFile:
    """A file of a submit or of a message, as the ledger knows it. `image`: kept content, if models can be shown it.

    `not_shown`: why models are not shown an image; "" for another file, too.
    """

    path: str
    digest: str
    size_bytes: int
    image: Image | None = None
    not_shown: str = ""


class Header(NamedTuple):
    """What the bytes of an image say about it."""

    media_type: str
    width: int
    height: int


def read_header(content: bytes) -> Header:
    """Returns the header of an image that models can be shown. Raises NotAnImage."""
    if len(content) > MAX_IMAGE_BYTES:
        raise NotAnImage(f"it has more than the {MAX_IMAGE_BYTES} bytes that models take")
    for beginning, read in _READERS.items():
        if content.startswith(beginning):
            header = read(content)
            break
    else:
        raise NotAnImage("it is not a PNG, JPEG, GIF or WebP image")
    if not (header.width and header.height):
        raise NotAnImage("it has no pixels")
    if max(header.width, header.height) > MAX_SIDE:
        raise NotAnImage(f"it has {header.width} x {header.height} pixels, and models take {MAX_SIDE} a side")
    return header


def _png(content: bytes) -> Header:
    size, at = (0, 0), 8
    kinds: set[bytes] = set()
    for _ in range(MAX_PARTS):
        if at + 12 > len(content):
            break
        length, kind = unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            break
        is_needed = kind[0] & 0x20 == 0  # a chunk that readers may skip, and whose checksum they do not mind
        if is_needed and zlib.crc32(content[at + 4 : end - 4]) != unpack_from(">I", content, end - 4)[0]:
            break
        if kind == b"IHDR" and length == 13 and not kinds:
            size = unpack_from(">II", content, at + 8)
        kinds.add(kind)
        if kind == b"IEND" and kinds >= {b"IHDR", b"IDAT"}:
            return Header(PNG, *size)
        at = end
    raise NotAnImage("it is a PNG image that is damaged or ends too soon")


_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_ALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg(content: bytes) -> Header:
    at = 2
    for _ in range(MAX_PARTS):
        if at + 9 > len(content) or content[at] != 0xFF:
            break
        marker = content[at + 1]
        if marker == 0xFF:  # a byte that only fills
            at += 1
        elif marker in _ALONE:
            at += 2
        elif marker in _FRAMES and content.find(b"\xff\xd9", at) > 0:
            height, width = unpack_from(">HH", content, at + 5)
            return Header(JPEG, width, height)
        elif marker in {0xD9, 0xDA} or marker in _FRAMES:
            break
        else:
            at += 2 + unpack_from(">H", content, at + 2)[0]
    raise NotAnImage("it is a JPEG image that is damaged or ends too soon")


def _gif(content: bytes) -> Header:
    if len(content) < 14 or not content.rstrip(b"\0").endswith(b";"):
        raise NotAnImage("it is a GIF image that ends too soon")
    return Header(GIF, *unpack_from("<HH", content, 6))


def _webp(content: bytes) -> Header:
    if len(content) < 30 or content[8:12] != b"WEBP" or unpack_from("<I", content, 4)[0] + 8 > len(content):
        raise NotAnImage("it is not a WebP image, or it ends too soon")
    match content[12:16]:
        case b"VP8 " if content[23:26] == b"\x9d\x01\x2a":
            width, height = unpack_from("<HH", content, 26)
            return Header(WEBP, width & 0x3FFF, height & 0x3FFF)
        case b"VP8L" if content[20] == 0x2F:
            (bits,) = unpack_from("<I", content, 21)
            return Header(WEBP, (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        case b"VP8X":
            sides = (int.from_bytes(content[at : at + 3], "little") + 1 for at in (24, 27))
            return Header(WEBP, *sides)
    raise NotAnImage("it is a WebP image that is damaged")


_READERS: Final = {
    b"\x89PNG\r\n\x1a\n": _png, b"\xff\xd8\xff": _jpeg, b"GIF87a": _gif, b"GIF89a": _gif, b"RIFF": _webp,
}  # fmt: skip


def begins_as_image(content: bytes) -> bool:
    """Whether bytes, at least the first twelve, begin as those of an image."""
    return content.startswith(tuple(_READERS)) and (not content.startswith(b"RIFF") or content[8:12] == b"WEBP")


# What an image costs: an upper bound, in tokens. The provider states what it bills.

_MAX_CLAUDE: Final = 4784
"""Larger images are scaled down: to 1,568 tokens by most models, to this by those with a high resolution."""
_MAX_PATCHES: Final = 1536
_DEAREST_PATCH: Final = 2.46
_LONG_SIDE, _SHORT_SIDE, _TILE = 2048, 768, 512


def image_tokens(model: str, width: int, height: int) -> int:
    """Returns the most tokens that an image takes in the input of a model.

    Anthropic: width · height / 750, and at least a token for each patch of 28 pixels. OpenAI's models count either
    tiles of 512 pixels, after the image was scaled into 2048 x 2048 and its shorter side to 768: 85 + 170 each
    (gpt-4o-mini: 2833 + 5667); or up to 1,536 patches of 32 pixels, times at most 2.46
    (platform.openai.com/docs/guides/images-vision). The larger number counts, also for other servers.
    """
    vendor, name = vendor_of(model)
    if vendor == ANTHROPIC:
        return min(_MAX_CLAUDE, max(-(-width * height // 750), _pieces(width, height, 28)))
    scale = min(1.0, _LONG_SIDE / max(width, height))
    scale = min(scale, _SHORT_SIDE / min(width, height))
    tiles = _pieces(width * scale, height * scale, _TILE)
    if "gpt-4o-mini" in name:
        return 2833 + 5667 * tiles
    patches = min(_MAX_PATCHES, _pieces(width, height, 32))
    return max(85 + 170 * tiles, int(patches * _DEAREST_PATCH) + 1)


def _pieces(width: float, height: float, side: int) -> int:
    return int(-(-width // side) * -(-height // side))


# Which models see images.

_BLIND: Final = re.compile(r"claude-(2|instant)")
_SEEING: Final = re.compile(
    r"(.*/)?(gpt-4o|gpt-4\.|gpt-4-turbo|gpt-5|chatgpt-4o|o1(?!-mini|-preview)|o3(?!-mini)|o4|gemini|(.*anthropic\.)?claude-(?!2|instant)"
    r"|grok-4|pixtral|gemma-?3|llama-?4|llava|.*vision|.*[-_:]?vl\b)",
    re.IGNORECASE,
)
"""The families of other vendors than Anthropic, and behind chat servers, that see images. Others refuse a whole request
for one.
"""


def sees_images(model: str, own: Iterable[str] = ()) -> bool:
    """Whether a model sees images. `own`: patterns of names that do, or with `!` that do not; the first counts."""
    for pattern in own:
        if fnmatchcase(model, pattern.removeprefix("!")):
            return not pattern.startswith("!")
    vendor, name = vendor_of(model)
    return not _BLIND.match(name) if vendor == ANTHROPIC and "/" not in name else bool(_SEEING.match(name))


# The files of a submit or of a message.

MAX_FILES_BYTES: Final = 3_000_000
"""Of all files of a request: in base64, they fit into one over HTTP."""
MESSAGES_DIRECTORY: Final = "messages"
"""Has a directory for each message with files, so that no message replaces a file that the agent works on."""
ANSWER_TEXT: Final = "These files came with the answer."
"""The text of the message that has the files of an answer."""
MAX_FILE_DEPTH: Final = 8
_TOO_LARGE: Final = "send it in parts with messages, or let a tool of the agent fetch it"
_PLAIN_NAME: Final = re.compile(rb"(?!\.tenure-)(?!\.\.?\Z)[^/\0-\x1f\x7f]{1,255}")


def submitted_file(path: str, content: bytes) -> SubmittedFile:
    """Returns what the ledger knows about a file."""
    kept = kept_as(content)
    file = SubmittedFile(path, kept.digest, kept.size_bytes)
    try:
        return replace(file, image=Image(kept, *read_header(content)))
    except NotAnImage as error:
        return replace(file, not_shown=str(error)) if begins_as_image(content) else file


def message_name(request_id: str, files: Iterable[SubmittedFile]) -> str:
    """Returns the name of a message's directory. Other files have another one, also with the same request id."""
    parts = [request_id, *(part for file in files for part in (file.path, file.digest))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def of_message(name: str, file: SubmittedFile) -> SubmittedFile:
    """Returns a file of a message, with its path in the workspace."""
    return replace(file, path=f"{MESSAGES_DIRECTORY}/{name}/{file.path}")


def problems_of_files(files: Iterable[tuple[str, int]]) -> Iterator[tuple[int, str]]:
    """Yields what is wrong with the files of a request, each with its path and its size: the index, and why."""
    total, taken = 0, {KEPT_DIRECTORY: False}  # whether a path is a file; else it is a directory
    for index, (path, size_bytes) in enumerate(files):
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
        total += size_bytes
        names = path.encode(errors="surrogatepass").split(b"/")
        if len(parts) > MAX_FILE_DEPTH or not all(map(_PLAIN_NAME.fullmatch, names)):
            yield index, f"{path!r} must be a relative path of at most {MAX_FILE_DEPTH} plain names of 255 bytes"
        elif path in taken or any(taken.get(one) for one in above):
            yield index, f"{path!r} is the path of another file or directory, too, or within a file"
        elif total > MAX_FILES_BYTES:
            cure = _TOO_LARGE if size_bytes > MAX_FILES_BYTES else "send others with messages"
            limit = f"the files of a request have {MAX_FILES_BYTES} bytes at most"
            yield index, f"{path!r} does not fit: {limit}; {cure}"
        taken |= dict.fromkeys(above, False) | {path: True}


def files_text(files: Sequence[SubmittedFile]) -> str:
    """Returns what the model reads about the files of a submit or of a message."""
    lines = [f"- {one.path} ({one.size_bytes} bytes{_image_text(one)})" for one in files]
    return "\n".join(["Files in the workspace, which came with this message:", *lines])


def with_files(text: str, files: Sequence[SubmittedFile]) -> str:
    """Returns the text of a submit or of a message, and what the model reads about its files."""
    return f"{text}\n\n{files_text(files)}" if files else text


REFUSED: Final = "the model provider refused it, or another image beside it"
_ABOUT_IMAGES: Final = re.compile(r"image|multimodal|vision", re.IGNORECASE)


def is_about_images(message: str) -> bool:
    """Whether a provider's refusal of a request names images as its reason."""
    return _ABOUT_IMAGES.search(message) is not None


def not_shown(why: str) -> str:
    """Returns what the model reads in the place of an image."""
    return f"[This image is not shown: {why}.]"


def _image_text(file: SubmittedFile) -> str:
    if file.image is None:
        return file.not_shown and f"; not shown: {file.not_shown}"
    return f", {file.image.media_type}, {file.image.width} x {file.image.height} pixels"


# References in a conversation.


def image_block(image: Image) -> dict[str, Any]:
    """Returns the block that refers to an image."""
    source = {
        "type": KEPT,
        "path": image.kept.path,
        "digest": image.kept.digest,
        "size_bytes": image.kept.size_bytes,
        "media_type": image.media_type,
        "width": image.width,
        "height": image.height,
    }
    return {"type": "image", "source": source}


def images_in(messages: Iterable[Block]) -> Iterator[Block]:
    """Yields the sources of the images in messages, in their order: those of a message, and those of its results."""
    for message in messages:
        if message["role"] == "user" and isinstance(message["content"], list):
            for block in message["content"]:
                yield from _sources(block)


def _sources(block: Block) -> Iterator[Block]:
    if block.get("type") == "image":
        yield block.get("source") or {}
    elif block.get("type") == "tool_result" and isinstance(content := block.get("content"), list):
        for part in content:
            yield from _sources(part)


def left_out(sources: Sequence[Block]) -> int:
    """Returns how many of the oldest images a request leaves out, because it may not have so many at once."""
    size_bytes = 0
    for shown, source in enumerate(reversed(sources)):
        size_bytes += source["size_bytes"]
        if shown == MAX_SHOWN or size_bytes > MAX_SHOWN_BYTES:
            return len(sources) - shown
    return 0


def with_parts(messages: Iterable[dict[str, Any]], parts: Iterable[dict[str, Any] | None]) -> list[dict[str, Any]]:
    """Returns the messages with a part in the place of each image, in their order; None: nothing takes its place.

    Messages without images stay the same objects.
    """
    left = iter(parts)
    return [
        {**message, "content": _replaced(message["content"], left)} if any(images_in([message])) else message
        for message in messages
    ]


def _replaced(blocks: Iterable[dict[str, Any]], parts: Iterator[dict[str, Any] | None]) -> list[dict[str, Any]]:
    replaced = []
    for block in blocks:
        if block["type"] == "image":
            part = next(parts)
            replaced += [] if part is None else [part]
        elif any(_sources(block)):
            replaced.append({**block, "content": _replaced(block["content"], parts)})
        else:
            replaced.append(block)
    return replaced
