# SPDX-License-Identifier: Apache-2.0
"""The cache stores, verifies and returns bitstream images."""

import dataclasses
import json
import os
import stat
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.catalog.fpga import bitstreams
from nova_accel.host.bitstreams import bitstream_cache, blob_store
from tests.support import examples
from tests.support.fpga import bitstream_files as files
from tests.support.fpga.cached_images import (
    KIB,
    LIMIT,
    A,
    B,
    bits,
    bitstream_files,
    facts,
    halves,
    never,
    put,
    requirement,
    store,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "accel" / "bitstreams"


@pytest.fixture
def cache(place: Path) -> bitstream_cache.BitstreamCache:
    return bitstream_cache.BitstreamCache(str(place), LIMIT)


class TestPut:
    def test_a_download_is_stored(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        content = bits("a")
        assert cache.get(A) is None
        bitstream = put(cache, A, content)
        assert bitstream == model.Bitstream(
            name=A,
            vendor="intel",
            path=str(place / files.digest(content)),
            function=files.FUNCTION,
            interface=files.INTERFACE,
            sha512=files.digest(content),
            size=len(content),
        )
        assert Path(bitstream.path).read_bytes() == content
        assert cache.get(A) == bitstream
        assert not halves(place)

    def test_only_the_owner_can_read_the_cache(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        place.mkdir(parents=True, mode=0o755)
        put(cache, A, bits("a"))
        assert stat.S_IMODE(place.stat().st_mode) == 0o700
        modes = {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()}
        assert modes == {0o600}

    def test_a_cached_file_is_not_downloaded(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        content = bits("a")
        first = put(cache, A, content)
        image = facts(A, content)
        assert store(cache, image, never()) == first
        other = facts(B, content)
        second = store(cache, other, never())
        assert second == dataclasses.replace(first, name=B)

    def test_a_later_process_reads_the_cache_without_glance(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        bitstream = put(cache, A, bits("a"))
        later = bitstream_cache.BitstreamCache(str(place), LIMIT)
        assert later.get(A) == bitstream
        image = later.facts(A)
        assert image is not None
        assert image.owner == files.OWNER
        assert later.digests([A, B]) == {bitstream.sha512}

    @pytest.mark.parametrize(
        ("came", "word"),
        [
            (b"", "cut off: 0 of"),
            (bits("a")[:-1], "cut off"),
            (bits("a") + b"x", "more than"),
            (bits("b"), "digest"),
        ],
    )
    def test_a_wrong_download_is_not_stored(
        self,
        cache: bitstream_cache.BitstreamCache,
        place: Path,
        came: bytes,
        word: str,
    ) -> None:
        image = facts(A, bits("a"))
        with pytest.raises(errors.BitstreamError, match=word) as caught:
            store(cache, image, [came])
        assert caught.value.image == A
        assert cache.get(A) is None
        assert not bitstream_files(place)
        assert not halves(place)

    def test_a_file_that_differs_from_its_properties_is_not_stored(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        content = files.gbs(files.metadata(files.OTHER))
        with pytest.raises(errors.BitstreamError, match="the file itself"):
            put(cache, A, content)
        assert not bitstream_files(place)

    def test_a_cached_file_is_checked_against_new_properties(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        content = files.gbs()
        put(cache, A, content)
        image = files.facts(
            content,
            A,
            files.properties(accelerator_function_id=files.OTHER),
        )
        with pytest.raises(errors.BitstreamError, match="the file itself"):
            store(cache, image, never())

    def test_a_failed_download_leaves_no_file(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        def broken() -> Iterator[bytes]:
            yield b"aa"
            raise ConnectionError("gone")

        image = facts(A, bits("a"))
        with pytest.raises(ConnectionError):
            store(cache, image, broken())
        assert not halves(place)
        put(cache, A, bits("a"))

    def test_a_download_may_be_restarted(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        content = bits("a")

        def fill(half: blob_store.PartialFile) -> None:
            half.write(b"something else")
            assert half.truncate(0) == 0
            half.write(content)

        image = facts(A, content)
        bitstream = cache.fetch(image, requirement(image), fill)
        assert Path(bitstream.path).read_bytes() == content

    @pytest.mark.parametrize("image", ["", "../x", "a/b", ".", "x" * 101])
    def test_an_image_id_is_no_path(
        self, cache: bitstream_cache.BitstreamCache, image: str
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="no image's id"):
            put(cache, image, bits("a"))
        assert cache.get(image) is None

    def test_a_partial_file_is_not_returned(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        content = bits("a")
        seen = []

        def chunks() -> Iterator[bytes]:
            yield content[:-1]
            seen.append((cache.get(A), bitstream_files(place)))
            yield content[-1:]

        image = facts(A, content)
        store(cache, image, chunks())
        assert seen == [(None, set())]


class TestSignature:
    """A file verified with another signature, or none, is fetched again."""

    def signed(self, text: str) -> bitstreams.ImageFacts:
        return files.facts(bits("a"), A, signature=text)

    def test_a_changed_signature_causes_a_download(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        downloads = []

        def fill(half: blob_store.PartialFile) -> None:
            downloads.append(1)
            half.write(bits("a"))

        for text in ("", "one", "one", "two", "", "two"):
            image = self.signed(text)
            cache.fetch(image, requirement(image), fill)
        assert len(downloads) == 4  # not for the second "one", nor for ""

    def test_an_unverified_file_serves_no_signed_image(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        put(cache, B, bits("a"))
        image = self.signed("one")

        def fill(half: blob_store.PartialFile) -> None:
            raise ConnectionError("refused")

        with pytest.raises(ConnectionError):
            cache.fetch(image, requirement(image), fill)


class TestDamage:
    @pytest.mark.parametrize("content", [b"", b"b" * 20 * KIB, b"a"])
    def test_a_damaged_file_is_fetched_again(
        self,
        cache: bitstream_cache.BitstreamCache,
        caplog: pytest.LogCaptureFixture,
        content: bytes,
    ) -> None:
        bitstream = put(cache, A, bits("a"))
        Path(bitstream.path).write_bytes(content)
        assert cache.get(A) is None
        assert "damaged" in caplog.text
        assert not Path(bitstream.path).exists()
        assert put(cache, A, bits("a")) == bitstream
        assert Path(bitstream.path).read_bytes() == bits("a")

    def test_a_symlink_is_not_returned(
        self, cache: bitstream_cache.BitstreamCache, tmp_path: Path
    ) -> None:
        bitstream = put(cache, A, bits("a"))
        elsewhere = tmp_path / "elsewhere"
        os.rename(bitstream.path, elsewhere)
        os.symlink(elsewhere, bitstream.path)
        assert cache.get(A) is None
        assert put(cache, A, bits("a")) == bitstream
        assert not Path(bitstream.path).is_symlink()

    @pytest.mark.parametrize(
        "text",
        [
            b"",
            b"{}",
            b"[]",
            b"\xff",
            b"[" * 60_000,
            b'{"id": 1}',
            b'{"properties": []}',
        ],
    )
    def test_damaged_metadata_are_ignored(
        self, cache: bitstream_cache.BitstreamCache, place: Path, text: bytes
    ) -> None:
        put(cache, A, bits("a"))
        (place / f"{A}.json").write_bytes(text)
        assert cache.get(A) is None
        assert put(cache, A, bits("a")) == cache.get(A)

    def test_metadata_of_another_image_are_ignored(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        put(cache, A, bits("a"))
        os.rename(place / f"{A}.json", place / f"{B}.json")
        assert cache.get(B) is None

    @given(
        st.dictionaries(
            st.sampled_from(
                [
                    field.name
                    for field in dataclasses.fields(bitstreams.ImageFacts)
                ]
            ),
            st.none()
            | st.integers()
            | st.text()
            | st.dictionaries(st.text(), st.integers()),
        )
    )
    @settings(max_examples=examples.examples(50))
    def test_any_metadata_are_ignored_or_match(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        changed: dict[str, object],
    ) -> None:
        place = tmp_path_factory.mktemp("cache")
        cache = bitstream_cache.BitstreamCache(str(place), LIMIT)
        bitstream = put(cache, A, bits("a", 10))
        note = place / f"{A}.json"
        note.write_text(json.dumps(json.loads(note.read_text()) | changed))
        again = cache.get(A)
        assert again is None or again.sha512 == bitstream.sha512


def test_a_file_is_in_memory_once_while_it_is_checked(
    tmp_path: Path,
) -> None:
    content = files.gbs(payload=bytes(4 * files.MIB))
    cache = bitstream_cache.BitstreamCache(str(tmp_path), 1 << 30)
    image = facts(A, content)
    chunks = (content[n : n + KIB] for n in range(0, len(content), KIB))
    tracemalloc.start()
    try:
        store(cache, image, chunks)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * len(content)


class TestLocalFile:
    def test_a_small_file_needs_little_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "blank.gbs"
        path.write_bytes(files.gbs())
        cache = bitstream_cache.BitstreamCache(str(tmp_path), 1 << 30)
        tracemalloc.start()
        try:
            cache.read_file(str(path))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < files.MIB

    def test_a_changed_file_is_read_again(
        self, cache: bitstream_cache.BitstreamCache, tmp_path: Path
    ) -> None:
        path = tmp_path / "blank.gbs"
        path.write_bytes(files.gbs())
        bitstream = cache.read_file(str(path))
        assert (bitstream.name, bitstream.path) == (str(path), str(path))
        assert bitstream.function == files.FUNCTION
        assert cache.read_file(str(path)) == bitstream
        path.write_bytes(files.gbs(files.metadata(files.OTHER)))
        assert cache.read_file(str(path)).function == files.OTHER

    def test_the_target_of_a_symlink_is_used(
        self, cache: bitstream_cache.BitstreamCache, tmp_path: Path
    ) -> None:
        path = tmp_path / "blank-1.gbs"
        path.write_bytes(files.gbs())
        link = tmp_path / "blank.gbs"
        link.symlink_to(path)
        bitstream = cache.read_file(str(link))
        assert (bitstream.name, bitstream.path) == (str(link), str(path))

    @pytest.mark.parametrize(
        ("make", "word"),
        [
            (lambda path: None, "ENOENT"),
            (lambda path: path.mkdir(), "EISDIR"),
            (os.mkfifo, "no file of at most"),
            (lambda path: path.write_bytes(b"raw"), "does not say"),
            (lambda path: path.write_bytes(bytes(LIMIT + 1)), "at most"),
        ],
    )
    def test_unusable_files_are_refused(
        self,
        cache: bitstream_cache.BitstreamCache,
        tmp_path: Path,
        make: Callable[[Path], None],
        word: str,
    ) -> None:
        path = tmp_path / "blank"
        make(path)
        with pytest.raises(errors.BitstreamError, match=word) as caught:
            cache.read_file(str(path))
        assert caught.value.image == str(path)
