"""Which bytes are an image that a model may be shown, what it costs, and which models see it."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.checkpoint.submit.create import digest_of
from tenure.domain.budget import TokenUsage
from tenure.domain.conversation import IMAGE_BYTES, result_of
from tenure.domain.entries import (
    AssistantMessage,
    Compaction,
    Entry,
    ModelAttempt,
    ModelFailure,
    Submitted,
    Summary,
    ToolIntent,
    UserMessage,
)
from tenure.domain.errors import InvalidRequest
from tenure.domain.fold import ResumePoint
from tenure.domain.images import (
    MAX_FILES_BYTES,
    MAX_IMAGE_BYTES,
    MAX_PARTS,
    MAX_SHOWN,
    MAX_SHOWN_BYTES,
    MAX_SIDE,
    Image,
    NotAnImage,
    files_text,
    image_block,
    image_tokens,
    images_in,
    left_out,
    message_name,
    of_message,
    problems_of_files,
    read_header,
    sees_images,
    submitted_file,
    with_parts,
)
from tenure.domain.task import InputFile, TaskSpec
from tenure.domain.texts import kept_as
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.sdk import option_values as values
from tenure.v1 import checkpoint_service_pb2
from tenure.wire.tool import submitted_file_to_wire
from tests.support.images import gif, jpeg, png, webp_extended, webp_lossless, webp_lossy


@pytest.mark.parametrize(
    ("make", "media_type"),
    [
        (png, "image/png"),
        (jpeg, "image/jpeg"),
        (gif, "image/gif"),
        (webp_lossy, "image/webp"),
        (webp_lossless, "image/webp"),
        (webp_extended, "image/webp"),
    ],
)
class TestFormats:
    @pytest.mark.parametrize("size", [(1, 1), (640, 480), (MAX_SIDE, 3)])
    def test_the_header_states_type_and_size(
        self, make: Callable[[int, int], bytes], media_type: str, size: tuple[int, int]
    ) -> None:
        assert read_header(make(*size)) == (media_type, *size)

    def test_a_truncated_image_is_not_an_image(self, make: Callable[[int, int], bytes], media_type: str) -> None:
        content = make(640, 480)
        for length in range(len(content)):
            with pytest.raises(NotAnImage):
                read_header(content[:length])
        assert read_header(content).media_type == media_type

    def test_a_side_that_is_too_long_is_refused(self, make: Callable[[int, int], bytes], media_type: str) -> None:
        del media_type
        with pytest.raises(NotAnImage, match="8001 x 1 pixels, and models take 8000 a side"):
            read_header(make(MAX_SIDE + 1, 1))


@pytest.mark.parametrize("content", [b"", b"hello", b"<svg/>", b"\x89PNG", b"BM" + bytes(60), b"%PDF-1.7"])
def test_other_bytes_are_not_an_image(content: bytes) -> None:
    with pytest.raises(NotAnImage, match="not a PNG, JPEG, GIF or WebP"):
        read_header(content)


def test_hostile_headers_are_refused() -> None:
    with pytest.raises(NotAnImage, match="pixels"):
        read_header(png(100_000, 10_000))  # 10^9 pixels
    with pytest.raises(NotAnImage, match="no pixels"):
        read_header(png(0, 480))
    with pytest.raises(NotAnImage, match="damaged"):
        read_header(png(640, 480).replace(struct.pack(">I", 640), struct.pack(">I", 641)))  # the checksum differs
    with pytest.raises(NotAnImage, match="damaged"):
        read_header(png(4, 4)[:8] + struct.pack(">I4s", 0xFFFF_FFFF, b"IDAT") + bytes(40))  # a chunk longer than all
    with pytest.raises(NotAnImage, match="damaged"):
        read_header(b"\xff\xd8\xff\xe0\x00\x00" * 10)  # segments of no length
    with pytest.raises(NotAnImage, match=f"more than the {MAX_IMAGE_BYTES} bytes"):
        read_header(png(640, 480) + bytes(MAX_IMAGE_BYTES))


@pytest.mark.parametrize(
    ("image", "part"),
    [(png(4, 4), struct.pack(">I4sI", 0, b"teXt", zlib.crc32(b"teXt"))), (jpeg(4, 4), b"\xff")],
    ids=["png", "jpeg"],
)
def test_an_image_of_too_many_parts_is_refused(image: bytes, part: bytes) -> None:
    """To look at all that fit into one image would take seconds."""
    start = 33 if image.startswith(b"\x89") else 2
    assert read_header(image[:start] + part * (MAX_PARTS - 10) + image[start:])
    with pytest.raises(NotAnImage):
        read_header(image[:start] + part * MAX_PARTS + image[start:])


def test_a_png_without_pixels_is_damaged() -> None:
    whole = png(4, 4)
    start = whole.index(b"IDAT") - 4
    end = start + 12 + struct.unpack_from(">I", whole, start)[0]
    with pytest.raises(NotAnImage):
        read_header(whole[:start] + whole[end:])
    assert zlib.decompress(whole[start + 8 : end - 4])


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        ("claude-sonnet-4-5", (1092, 1092), 1590),  # the provider's own examples: about 1,590 and 54
        ("claude-sonnet-4-5", (200, 200), 64),
        ("claude-opus-4-8", (8000, 8000), 4784),
        ("claude-opus-4-8", (8000, 1), 286),
        ("openai/gpt-4o", (1024, 1024), 2520),  # 1,024 patches, dearer than 85 + 4 · 170 = 765
        ("openai/gpt-4o-mini", (1024, 1024), 25501),
        ("openai/gpt-5", (64, 64), 255),
    ],
)
def test_an_image_costs_its_pixels(model: str, size: tuple[int, int], tokens: int) -> None:
    assert image_tokens(model, *size) == tokens


@pytest.mark.parametrize(
    ("model", "sees"),
    [
        ("claude-opus-4-8", True),
        ("claude-2.1", False),
        ("openai/gpt-5-mini", True),
        ("openai/o3-mini", False),
        ("openai/gpt-3.5-turbo", False),
        ("openai/llama3", False),
        ("openai/qwen2.5-vl:7b", True),
        ("openai/google/gemini-2.5-pro", True),
        ("openai/anthropic/claude-sonnet-4-5", True),
        ("google/gemini-2.5-pro", True),
        ("groq/llama-3.1-8b", False),
        ("aws/us.anthropic.claude-sonnet-4-5-v1:0", True),
    ],
)
def test_a_model_sees_images_if_it_is_known_to(model: str, sees: bool) -> None:
    assert sees_images(model) is sees


def test_the_first_pattern_decides_about_a_model() -> None:
    own = ("!openai/llama3-text", "openai/llama*", "!claude-*")
    assert sees_images("openai/llama3", own)
    assert not sees_images("openai/llama3-text", own)
    assert not sees_images("claude-opus-4-8", own)
    assert sees_images("openai/gpt-5", own)


def image(name: str = "a", size_bytes: int = 100) -> Image:
    kept = kept_as(name.encode())
    return Image(type(kept)(kept.path, kept.digest, size_bytes), "image/png", 64, 48)


def outcome_block(*images: Image, status: OutcomeStatus = OutcomeStatus.SUCCEEDED) -> Any:
    intent = ToolIntent("1.0", "toolu_1", "screen", "{}")
    return result_of(intent, Outcome(status, "[image: kept in a file]", images=images))


def test_the_conversation_has_a_reference_and_no_bytes() -> None:
    block = outcome_block(image()).block
    source = {**image_block(image())["source"]}
    assert block["content"] == [
        {"type": "text", "text": "[image: kept in a file]"},
        {"type": "image", "source": source},
    ]
    assert source["path"] == image().kept.path


def test_the_result_of_a_failed_call_has_no_images() -> None:
    block = outcome_block(image(), status=OutcomeStatus.FAILED).block
    assert block["content"] == "[image: kept in a file]"


def test_clearing_a_result_saves_its_images() -> None:
    assert outcome_block(image(), image("b")).saved_bytes > 2 * IMAGE_BYTES - 100
    assert outcome_block().saved_bytes < 0


def test_the_oldest_of_too_many_images_are_left_out() -> None:
    many = [image_block(image(str(n)))["source"] for n in range(MAX_SHOWN + 3)]
    assert left_out(many) == 3
    assert left_out(many[:MAX_SHOWN]) == 0
    large = [image_block(image(str(n), MAX_IMAGE_BYTES))["source"] for n in range(6)]
    assert left_out(large) == 6 - MAX_SHOWN_BYTES // MAX_IMAGE_BYTES


def test_parts_replace_images_in_their_order() -> None:
    own = {"role": "user", "content": [{"type": "text", "text": "See"}, image_block(image("own"))]}
    text_only = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}
    results = {"role": "user", "content": [outcome_block(image("b"), image("c")).block]}
    messages = [own, text_only, results]
    assert [source["digest"] for source in images_in(messages)] == [
        kept_as(n.encode()).digest for n in ("own", "b", "c")
    ]
    parts = [{"type": "image", "source": 1}, None, {"type": "text", "text": "gone"}]
    first, second, third = with_parts(messages, parts)
    assert first["content"][1] == parts[0]
    assert second is text_only
    assert third["content"][0]["content"] == [{"type": "text", "text": "[image: kept in a file]"}, parts[2]]
    assert own["content"][1] == image_block(image("own")), "the ledger's history was changed"


def problems(*files: tuple[str, int]) -> list[tuple[int, str]]:
    return [(index, why.partition(" ")[2]) for index, why in problems_of_files(files)]


def test_files_of_a_submit_have_plain_paths() -> None:
    assert problems(("a", 1), ("b/c.png", 2), ("b/d", 0), ("Grüße.txt", 1)) == []
    plain = "must be a relative path of at most 8 plain names of 255 bytes"
    for path in ("", ".", "..", "/a", "a/", "a//b", "a/../b", "a\0", "a\n", ".tenure-x", "a/" * 8 + "b", "é" * 128):
        assert problems((path, 1)) == [(0, plain)]
    assert problems(("é" * 127, 1), ("outputs/a", 1)) == []
    another = "is the path of another file or directory, too, or within a file"
    assert problems(("outputs", 1)) == [(0, another)], "copies of images have a place there"
    assert problems(("a", 1), ("a", 1), ("a/b", 1)) == [(1, another), (2, another)]
    assert problems(("a/b", 1), ("a", 1)) == [(1, another)]
    assert [index for index, _ in problems(("a", MAX_FILES_BYTES), ("b", 0), ("c", 1))] == [2]


def test_a_file_that_does_not_fit_says_what_to_do() -> None:
    ((_, other),) = problems_of_files([("a", MAX_FILES_BYTES), ("b", 1)])
    assert other.endswith("at most; send others with messages")
    ((_, alone),) = problems_of_files([("a", MAX_FILES_BYTES + 1)])
    assert alone.endswith("at most; send it in parts with messages, or let a tool of the agent fetch it")


def test_a_repeated_submit_has_the_same_paths_and_bytes() -> None:
    def digest(path: str, content: bytes, *, is_image: bool = True) -> bytes:
        file = submitted_file(path, content)
        wire = submitted_file_to_wire(file if is_image else replace(file, image=None))
        return digest_of(checkpoint_service_pb2.CreateTaskRequest(files=[wire]))

    first = digest("a", png(4, 4))
    assert first == digest("a", png(4, 4), is_image=False), "an older gateway may not know this kind of image"
    assert len({first, digest("b", png(4, 4)), digest("a", png(4, 5))}) == 3


FILES = (submitted_file("photo.png", png(64, 48)), submitted_file("facts.txt", b"true"))


def test_the_first_message_has_goal_files_and_images() -> None:
    point = ResumePoint()
    point.apply(Entry(1, 0, Submitted(TaskSpec("Look."), files=FILES)))
    named = f"photo.png ({FILES[0].size_bytes} bytes, image/png, 64 x 48 pixels)"
    texts = [
        "Look.",
        f"Files in the workspace, which came with this message:\n- {named}\n- facts.txt (4 bytes)",
    ]
    [photo] = [file.image for file in FILES if file.image]
    content = [*({"type": "text", "text": text} for text in texts), image_block(photo)]
    assert point.pending_content == content
    point.apply(Entry(2, 1, ModelAttempt(1, "m", 10, 10, 20)))
    assert point.messages == [{"role": "user", "content": content}]
    assert point.pending_content == []
    point.apply(Entry(3, 1, AssistantMessage(1, ({"type": "text", "text": "I see."},), "end_turn", TokenUsage())))
    point.apply(Entry(4, 1, Compaction(Summary(1, "It looked."))))
    [head] = point.messages
    assert head["content"][:-1] == content, "a summary does not replace what came with the goal"


def test_the_names_of_files_say_why_an_image_is_not_shown() -> None:
    damaged = submitted_file("a.png", png(4, 4)[:-5])
    assert damaged.image is None
    assert files_text([damaged]).endswith("bytes; not shown: it is a PNG image that is damaged or ends too soon)")
    for other in (b"RIFF\x24\0\0\0WAVEfmt ", b"GIF", b"", b"true"):
        assert submitted_file("other", other).not_shown == ""


def test_a_message_has_its_images_until_they_are_read() -> None:
    point = ResumePoint()
    point.apply(Entry(1, 0, Submitted(TaskSpec("Look."))))
    point.apply(Entry(2, 1, ModelAttempt(1, "m", 10, 10, 20)))
    point.apply(Entry(3, 1, AssistantMessage(1, ({"type": "text", "text": "I see."},), "end_turn", TokenUsage())))
    name = message_name("m-1", FILES)
    files = tuple(of_message(name, file) for file in FILES)
    point.apply(Entry(4, 1, UserMessage("And this.", "m-1", files)))
    content = point.pending_content
    assert [block.get("text", "")[:9] for block in content] == ["And this.", "Files in ", ""]
    assert f"- messages/{name}/photo.png (" in content[1]["text"]
    assert [content[2]] == [image_block(file.image) for file in FILES if file.image]
    point.apply(Entry(5, 2, ModelAttempt(1, "m", 10, 10, 20)))
    assert point.messages[-1]["content"] == content
    point.apply(Entry(6, 2, Compaction(Summary(1, "It looked."))))
    assert len(point.messages) == 1
    assert point.pending_content == content, "a summary does not replace what the model has not read"


def test_other_files_of_a_message_have_another_path() -> None:
    names = {message_name("m", files) for files in (FILES, FILES[:1], (submitted_file("photo.png", png(1, 1)),))}
    assert len({*names, message_name("n", FILES)}) == 4


def test_a_submit_reads_a_path_and_refuses_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"true")
    [read, given] = values.files("files", [path, InputFile("b", b"1")])
    assert (read.path, read.content, given.path, given.content) == ("a.txt", b"true", "b", b"1")
    half = MAX_FILES_BYTES // 2 + 1
    for wrong, field in (
        (str(path), "files"),
        ([str(path)], "files"),
        ([tmp_path / "none"], "files"),
        ([tmp_path], "files"),
        ([InputFile("a", b""), InputFile("../b", b"")], "files[1]"),
        ([InputFile("a", bytes(half)), InputFile("b", bytes(half))], "files[1]"),  # gRPC would refuse it by its size
    ):
        with pytest.raises(InvalidRequest) as refused:
            values.files("files", wrong)  # type: ignore[arg-type]
        assert refused.value.violations[0].field == field


def test_a_refusal_of_images_hides_them_once() -> None:
    point = ResumePoint()
    point.apply(Entry(1, 0, Submitted(TaskSpec("Look."), files=FILES)))
    refusal = ModelFailure(1, "INVALID_REQUEST", "messages.0: Could not process image", retryable=False)
    other = ModelFailure(1, "INVALID_REQUEST", "max_tokens: too large", retryable=False)
    point.apply(Entry(2, 1, ModelAttempt(1, "m", 10, 10, 20)))
    assert not point.is_refusal_of_images(other)
    point.apply(Entry(3, 1, refusal))
    assert (point.failures, point.refused_images) == ([], {FILES[0].digest})
    point.apply(Entry(4, 1, ModelAttempt(2, "m", 10, 10, 20)))
    point.apply(Entry(5, 1, refusal))
    assert point.failures == [refusal], "there is nothing left to hide"
