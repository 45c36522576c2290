# SPDX-License-Identifier: Apache-2.0
"""The blob store stays within its limit under concurrency."""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest
from hypothesis import settings, stateful
from hypothesis import strategies as st

from nova_accel import errors, model
from nova_accel.host.bitstreams import bitstream_cache, blob_store
from tests.support import examples
from tests.support.fpga import bitstream_files as files
from tests.support.fpga.cached_images import (
    KIB,
    LIMIT,
    A,
    B,
    C,
    bits,
    bitstream_files,
    facts,
    halves,
    put,
    size_of,
    store,
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "accel" / "bitstreams"


@pytest.fixture
def cache(place: Path) -> bitstream_cache.BitstreamCache:
    return bitstream_cache.BitstreamCache(str(place), LIMIT)


class TestRoom:
    def test_the_least_recently_used_file_is_removed(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        for image, letter in ((A, "a"), (B, "b"), (C, "c")):
            put(cache, image, bits(letter))
        assert cache.get(A)
        put(cache, files.IMAGE, bits("d"))
        assert cache.get(B) is None
        assert all(map(cache.get, (A, C, files.IMAGE)))
        assert not (place / f"{B}.json").exists()

    def test_a_protected_file_is_not_removed(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        first = put(cache, A, bits("a"))
        put(cache, B, bits("b", 30 * KIB))
        put(cache, C, bits("c", 40 * KIB), (first.sha512,))
        assert cache.get(A) == first
        assert cache.get(B) is None

    def test_a_file_is_refused_if_all_others_are_protected(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        protected = [put(cache, A, bits("a")), put(cache, B, bits("b"))]
        put(cache, C, bits("c"))
        with pytest.raises(errors.BitstreamError, match="no room"):
            put(
                cache,
                files.IMAGE,
                bits("d", 30 * KIB),
                tuple(bitstream.sha512 for bitstream in protected),
            )
        assert all(map(cache.get, (A, B, C)))

    def test_a_file_larger_than_the_limit_is_refused(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        with pytest.raises(errors.BitstreamError, match="bitstream_cache_mb"):
            put(cache, A, bits("a", LIMIT + 1))
        assert not place.exists()

    def test_a_partial_file_of_a_dead_process_is_removed(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        put(cache, A, bits("a"))
        (place / "half-abandoned").write_bytes(bytes(60 * KIB))
        put(cache, B, bits("b"))
        assert not halves(place)
        assert cache.get(A)

    def test_a_file_being_written_counts(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        store = blob_store.BlobStore(str(place), LIMIT)
        content = bits("a", 50 * KIB)
        with (
            store.add_file(A, files.digest(content), len(content)),
            pytest.raises(errors.BitstreamError, match="no room"),
        ):
            put(cache, B, bits("b"))

    def test_an_unwritable_directory_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        place = tmp_path / "file" / "bitstreams"
        cache = bitstream_cache.BitstreamCache(str(place), LIMIT)
        with pytest.raises(
            errors.BitstreamError, match=r"file: .*EXIST.*state_dir"
        ):
            put(cache, A, bits("a"))
        assert cache.get(A) is None

    def test_a_failed_write_names_the_path(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        """A resource limit fails the write as a quota does (EFBIG)."""
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10 * KIB, before[1]))
        try:
            with pytest.raises(errors.BitstreamError, match=str(place)):
                put(cache, A, bits("a"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not halves(place)
        put(cache, A, bits("a"))

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
    def test_a_full_disk_names_the_path(self, tmp_path: Path) -> None:
        script = f"""
import sys; sys.path[:0] = {sys.path!r}
from pathlib import Path
from nova_accel import errors
from nova_accel.host.bitstreams import bitstream_cache
from tests.support.fpga import cached_images as keeping
place = Path({str(tmp_path)!r}) / "bitstreams"
cache = bitstream_cache.BitstreamCache(str(place), keeping.LIMIT)
try:
    keeping.put(cache, keeping.A, keeping.bits("a", 60 * keeping.KIB))
except errors.BitstreamError as error:
    print(error, keeping.halves(place))
"""
        mount = f"mount -t tmpfs -o size=32k tmpfs {tmp_path}"
        done = subprocess.run(  # noqa: S603
            [  # noqa: S607
                "unshare",
                "-m",
                "sh",
                "-c",
                f'{mount} && "$0" -',
                sys.executable,
            ],
            input=script,
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout and "mount" in done.stderr:
            pytest.skip(done.stderr)
        assert "ENOSPC" in done.stdout, done.stderr
        assert str(tmp_path) in done.stdout
        assert done.stdout.rstrip().endswith("[]")


class TestConcurrency:
    def test_an_image_is_downloaded_once_for_many_threads(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        content = bits("a")
        image = facts(A, content)
        came = []
        start = threading.Barrier(8)

        def chunks() -> Iterator[bytes]:
            came.append(threading.get_ident())
            yield content[:9]
            time.sleep(0.1)
            yield content[9:]

        def ask(_: int) -> model.Bitstream:
            start.wait()
            return store(cache, image, chunks())

        with futures.ThreadPoolExecutor(8) as pool:
            bitstreams = set(pool.map(ask, range(8)))
        assert len(came) == 1
        assert bitstreams == {cache.get(A)}

    def test_two_images_are_downloaded_concurrently(
        self, cache: bitstream_cache.BitstreamCache
    ) -> None:
        both = threading.Barrier(2)

        def ask(image: str, letter: str) -> model.Bitstream:
            image_facts = facts(image, bits(letter))

            def chunks() -> Iterator[bytes]:
                both.wait(timeout=30)
                yield bits(letter)

            return store(cache, image_facts, chunks())

        with futures.ThreadPoolExecutor(2) as pool:
            bitstreams = list(pool.map(ask, (A, B), "ab"))
        assert bitstreams == [cache.get(A), cache.get(B)]

    def test_an_image_is_downloaded_once_for_two_processes(
        self,
        cache: bitstream_cache.BitstreamCache,
        place: Path,
        tmp_path: Path,
    ) -> None:
        script = f"""
import sys; sys.path[:0] = {sys.path!r}
import time
from pathlib import Path
from nova_accel.host.bitstreams import bitstream_cache
from tests.support.fpga import cached_images as keeping
cache = bitstream_cache.BitstreamCache({str(place)!r}, keeping.LIMIT)
image = keeping.facts(keeping.A, keeping.bits("a"))
def chunks():
    print("download", flush=True)
    time.sleep(0.5)
    yield keeping.bits("a")
print(keeping.store(cache, image, chunks()).sha512)
"""
        running = [
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-c", script],
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        outputs = [
            process.communicate(timeout=60)[0].split() for process in running
        ]
        assert sum("download" in words for words in outputs) == 1
        assert {words[-1] for words in outputs} == {files.digest(bits("a"))}

    def test_many_threads_keep_the_limit(
        self, cache: bitstream_cache.BitstreamCache, place: Path
    ) -> None:
        """Files are complete and within the limit at any time."""
        letters = "abcdefgh"
        over: list[int] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.is_set():
                if place.exists():
                    names = list(place.iterdir())
                    size = sum(size_of(name) for name in names)
                    over.extend([size] if size > LIMIT else [])

        def ask(number: int) -> None:
            letter = letters[number % len(letters)]
            image = letter + A[1:]
            try:
                bitstream = put(cache, image, bits(letter, 15 * KIB))
            except errors.BitstreamError as error:
                assert "no room" in str(error)  # other threads are writing
                return
            assert bitstream.sha512 == files.digest(bits(letter, 15 * KIB))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            with futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(ask, range(80)))
        finally:
            stop.set()
        watcher.join()
        assert not over
        assert not halves(place)
        for name in bitstream_files(place):
            assert files.digest((place / name).read_bytes()) == name


class Life(stateful.RuleBasedStateMachine):
    """Random calls: files stay within the limit and are returned intact."""

    images = st.sampled_from([A, B, C, files.IMAGE])
    letters = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.keeper = tempfile.TemporaryDirectory()
        self.place = Path(self.keeper.name, "bitstreams")
        self.again()

    @stateful.rule()
    def again(self) -> None:
        self.cache = bitstream_cache.BitstreamCache(str(self.place), LIMIT)

    def content(self, letter: str) -> bytes:
        return bits(letter, (ord(letter) - ord("a") + 1) * 9 * KIB)

    @stateful.rule(image=images, letter=letters, letters_kept=st.sets(letters))
    def put(self, image: str, letter: str, letters_kept: set[str]) -> None:
        content = self.content(letter)
        keep = {
            files.digest(self.content(kept_letter))
            for kept_letter in letters_kept
        }
        before = self.names()
        try:
            bitstream = put(self.cache, image, content, tuple(keep))
        except errors.BitstreamError as error:
            assert "no room" in str(error)
            # A damaged file of this image was removed first.
            assert self.names() >= before - {files.digest(content)}
            return
        assert Path(bitstream.path).read_bytes() == content
        assert self.names() >= before & keep
        assert self.cache.get(image) == bitstream

    @stateful.rule(image=images, letter=letters, size=st.integers(0, 99))
    def put_incomplete(self, image: str, letter: str, size: int) -> None:
        content = self.content(letter)
        if files.digest(content) in self.names():
            return
        image_facts = facts(image, content)
        with pytest.raises(errors.BitstreamError):
            store(self.cache, image_facts, [content[:size]])

    @stateful.rule(image=images)
    def get(self, image: str) -> None:
        bitstream = self.cache.get(image)
        if bitstream is not None:
            content = Path(bitstream.path).read_bytes()
            assert files.digest(content) == bitstream.sha512
            assert len(content) == bitstream.size

    @stateful.rule(number=st.integers(0, 9), content=st.binary(max_size=9))
    def damage(self, number: int, content: bytes) -> None:
        if self.place.exists():
            blobs = sorted(self.place.glob("[!l]*"))
            if blobs:
                blobs[number % len(blobs)].write_bytes(content)

    def names(self) -> set[str]:
        return bitstream_files(self.place) if self.place.exists() else set()

    @stateful.invariant()
    def is_bounded(self) -> None:
        if self.place.exists():
            assert sum(map(size_of, self.place.iterdir())) <= LIMIT
            assert not halves(self.place)

    def teardown(self) -> None:
        self.keeper.cleanup()


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=examples.examples(40), stateful_step_count=25
)
