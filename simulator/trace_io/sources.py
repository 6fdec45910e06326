"""Where traces lie: single files, gzip, tar archives, directories; opened lazily, one member at a time."""

from __future__ import annotations

import gzip
import io
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from simulator.config import beside
from simulator.errors import TraceError
from simulator.trace_io.trace_record import MAX_RANKS
from simulator.units import format_bytes

#: endings of what Perfetto shows: Chrome's JSON and its own protobuf
CHROME_ENDINGS = (".json", ".json.gz")
PERFETTO_ENDINGS = (".pftrace", ".pftrace.gz", ".perfetto-trace", ".pb")
SHOWN_ENDINGS = PERFETTO_ENDINGS + CHROME_ENDINGS
#: what a damaged file or archive raises while it is read
DAMAGE = (OSError, EOFError, ValueError, zlib.error, tarfile.TarError)
_GZIP = b"\x1f\x8b"
#: what is read of a file at a time, and inflated at a time
_PART_BYTES, _PIECE_BYTES = 1 << 18, 1 << 20
#: what is inflated to more than so many bytes is at most so many times as large as stored: traces are 10 to 60 times, deflate
#: comes to 1,032 times, in a hurry to 229
_SURELY_BYTES, MOST_INFLATED = 1 << 24, 120
_RANK = (
    re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"worker[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[-_/]|(?<!\d)\.)(\d{1,6})\.(?:et|json|pt\.trace\.json|csv|parquet)(?:\.gz)?$", re.IGNORECASE),
    re.compile(r"(?:^|/)(\d{1,6})/[^/]*$"),
)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trace file, possibly compressed and inside an archive."""

    name: str  #: Path, with ``!member`` for what lies inside an archive.
    path: Path  #: The file on disk.
    inside: str = ""  #: Name within the archive, ``""`` for a plain file.
    n_bytes: int = 0  #: Size as stored.

    @contextmanager
    def open(self, progress: Progress | None = None) -> Iterator[IO[bytes]]:
        """Open the uncompressed content; ``progress`` gets (name, stored bytes read, stored bytes in all)."""
        try:
            if not self.inside:
                with open(self.path, "rb") as file:
                    yield cast(IO[bytes], _Stored(file, self, progress))
                return
            with tarfile.open(self.path) as archive:
                content = archive.extractfile(self.inside)
                if content is None:
                    raise TraceError(f"{self.name}: is not a file")
                with content:
                    yield cast(IO[bytes], _Stored(content, self, progress))
        except (OSError, EOFError, zlib.error, tarfile.TarError) as fault:
            raise TraceError(f"{self.name}: cannot be read: {fault}") from fault

    def head(self, n_bytes: int = 1 << 16) -> bytes:
        """Return the first bytes of the uncompressed content."""
        with self.open() as file:
            try:
                return file.read(n_bytes)
            except DAMAGE as fault:
                raise TraceError(f"{self.name}: cannot be decompressed: {fault}") from fault

    @property
    def rank(self) -> int | None:
        """The rank that the name tells, if it does.

        Examples
        --------
        >>> Member(name="run/worker3_step_12.json", path=Path()).rank
        3
        >>> Member(name="run/trace.1.0.2.json", path=Path()).rank  # a version is no rank
        """
        tail = self.name.rsplit("!", 1)[-1]
        for pattern in _RANK:
            found = pattern.findall(tail)
            if found and len(found[-1]) < 7 and int(found[-1]) < MAX_RANKS:
                return int(found[-1])
        return None


class _Stored(io.BufferedIOBase):
    """Content as it lies in a file, decompressed on the way if need be.

    What a damaged or cut gzip file still gives is given first; only then its fault is raised.
    """

    def __init__(self, file: IO[bytes], member: Member, progress: Progress | None) -> None:
        self._file, self._member, self._progress = file, member, progress
        head = file.read(2)
        file.seek(0)
        self._inflater = zlib.decompressobj(wbits=31) if head == _GZIP else None
        self._ready = bytearray()
        self._n_stored = self._n_inflated = 0
        self._fault: Exception | None = None
        self._ended = False

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        wanted = -1 if size is None or size < 0 else size
        if self._inflater is None:
            return self._fetch(wanted)
        while not self._ended and (wanted < 0 or len(self._ready) < wanted):
            self._inflate()
        if not self._ready and self._fault is not None and wanted >= 0:
            raise self._fault
        count = len(self._ready) if wanted < 0 else wanted
        data = bytes(self._ready[:count])
        del self._ready[:count]
        return data

    def read1(self, size: int = -1) -> bytes:
        return self.read(_PART_BYTES if size < 0 else size)

    def _fetch(self, size: int) -> bytes:
        data = self._file.read(size)
        if self._progress is not None:
            self._progress(self._member.name, self._file.tell(), self._member.n_bytes)
        return data

    def _inflate(self) -> None:
        assert self._inflater is not None
        data = self._inflater.unconsumed_tail or self._fetch(_PART_BYTES)
        if not data:
            self._ended = True
            self._ready += self._inflater.flush()
            if not self._inflater.eof:
                self._fault = EOFError("compressed file ends early")
            return
        try:
            while data:
                inflated = self._inflater.decompress(data, _PIECE_BYTES)
                self._ready += inflated
                self._n_inflated += len(inflated)
                self._n_stored += len(data) - len(self._inflater.unconsumed_tail)
                _check_inflated(self._member.name, self._n_inflated, self._n_stored)
                data = self._inflater.unused_data.lstrip(b"\x00") if self._inflater.eof else b""
                if data:
                    self._inflater = zlib.decompressobj(wbits=31)
        except zlib.error as fault:
            self._ended, self._fault = True, fault


@contextmanager
def created(path: str | Path, whole: ExitStack | None = None) -> Iterator[IO[bytes]]:
    """Open a file for writing, gzipped without a date where the name says so: one trace gives the same bytes again.

    It takes its name when it is closed, or, of several files that are one trace, at the end of the whole.
    """
    with ExitStack() as alone, open((whole or alone).enter_context(beside(path)), "wb") as file:
        if not str(path).endswith(".gz"):
            yield file
            return
        with gzip.GzipFile(Path(path).name, "wb", compresslevel=5, fileobj=file, mtime=0) as packed:
            yield cast(IO[bytes], packed)


def created_together(directory: str | Path, files: Mapping[str, Callable[[IO[bytes]], None]]) -> tuple[Path, ...]:
    """Write the files of a folder that are one trace, each by what writes it."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as whole:
        for name, write in files.items():
            with created(folder / name, whole) as file:
                write(file)
    return tuple(folder / name for name in files)


def write_events(file: IO[bytes], events: Iterable[Mapping[str, Any]]) -> None:
    """Write events of a JSON list, one a line, without its brackets."""
    encode = msgspec.json.Encoder().encode
    for number, event in enumerate(events):
        file.write((b",\n" if number else b"") + encode(event))


def members(paths: Iterable[str | Path]) -> tuple[Member, ...]:
    """Return all files behind the paths: themselves, what their archives hold, what their directories hold."""
    found: list[Member] = []
    for path in map(Path, paths):
        try:
            there = path.exists()
        except OSError as fault:
            raise TraceError(f"{path}: {fault.strerror}") from fault
        if not there:
            raise TraceError(f"{path}: no such file or directory")
        if path.is_dir():
            files = sorted(Path(root) / name for root, _, names in os.walk(path, onerror=_unlistable) for name in names)
            for file in files:
                if file.name.startswith("."):
                    continue
                if not file.exists():
                    raise TraceError(f"{file}: links to nothing")
                if file.is_file():
                    found.extend(_members_of(file))
        elif path.is_file():
            found.extend(_members_of(path))
        else:
            raise TraceError(f"{path}: is a pipe or a device; a trace is read more than once: write a file")
    return tuple(found)


def _unlistable(fault: OSError) -> None:
    raise TraceError(f"{fault.filename}: cannot be listed: {fault.strerror}") from fault


def _members_of(path: Path) -> Iterator[Member]:
    size = path.stat().st_size
    if size == 0 or not _is_tar(path):
        yield Member(name=str(path), path=path, n_bytes=size)
        return
    try:
        with tarfile.open(path) as archive:
            entries = sorted(_entries(archive, path, size), key=lambda entry: entry.name)
    except DAMAGE as fault:
        raise TraceError(f"{path}: the archive cannot be read: {fault}") from fault
    for entry in entries:
        if not Path(entry.name).name.startswith("."):
            yield Member(name=f"{path}!{entry.name}", path=path, inside=entry.name, n_bytes=entry.size)


def _entries(archive: tarfile.TarFile, path: Path, n_stored: int) -> Iterator[tarfile.TarInfo]:
    """Yield the files of an archive; to get behind one that is too large takes as long as to inflate it."""
    n_inflated = 0
    for entry in archive:
        n_inflated += entry.size
        _check_inflated(str(path), n_inflated, n_stored)
        if entry.isfile():
            yield entry


def _check_inflated(name: str, n_inflated: int, n_stored: int) -> None:
    if n_inflated > max(_SURELY_BYTES, MOST_INFLATED * n_stored):
        raise TraceError(
            f"{name}: {format_bytes(n_stored)} of it inflate to {format_bytes(n_inflated)} or more; of what compresses to less than "
            f"1/{MOST_INFLATED}, no more than {format_bytes(_SURELY_BYTES)} are read",
            hint="if it is a trace after all, unpack it first and give the result",
        )


def _is_tar(path: Path) -> bool:
    """Whether the content, decompressed if need be, carries the magic of a tar header."""
    try:
        with open(path, "rb") as file:
            head = _Stored(file, Member(name=str(path), path=path), None).read(512)
    except DAMAGE:
        return False
    return head[257:262] == b"ustar"
