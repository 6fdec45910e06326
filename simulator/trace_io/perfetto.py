"""Timelines for people: Perfetto protobuf with ordered ranks and counters; and a timeline in any format that is asked for.

References
----------
Perfetto TrackEvent reference, https://perfetto.dev/docs/reference/synthetic-track-event
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import msgspec

from simulator.config import check_place
from simulator.errors import TraceError
from simulator.timeline import Timeline
from simulator.trace_io import chakra, chrome_json, kineto
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.sources import CHROME_ENDINGS, SHOWN_ENDINGS, created
from simulator.trace_io.tracks import Counter, Process, Slice, Track, thinned, timeline_processes

#: operations that fit into the memory of a laptop while they are laid out
_MOST_WRITTEN = 5_000_000
_SEQUENCE = 1
_SEQ_CLEARED, _SEQ_NEEDS_STATE = 1, 2
_ROOT, _EXPLICIT, _NO_MERGE = 0, 3, 2


def write(
    timeline: Timeline,
    path: str | Path,
    *,
    memory: Mapping[int, Iterable[Counter]] | None = None,
    device: str = "",
) -> None:
    """Write a timeline in the format that the file name asks for.

    Parameters
    ----------
    path : str or Path
        ``*.json`` or ``*.json.gz`` gives Chrome JSON, ``*.pftrace`` Perfetto protobuf, ``*.et`` a Chakra trace of
        each rank; a name without suffix is a folder of Kineto files, which Holistic Trace Analysis reads. All hold every
        rank, those that others stood for included.
    memory : mapping of int to iterable of Counter, optional
        Shown below the tracks of a rank.
    """
    check_length(timeline, path)
    name = str(path)
    if name.endswith(SHOWN_ENDINGS):
        write_shown(_with_counters(timeline_processes(timeline), memory or {}), path)
    elif name.endswith(".et"):
        trace = from_timeline(timeline, device=device, all_members=True)
        chakra.write(trace, Path(path).parent, prefix=Path(path).stem)
    else:
        check_trace(path)
        kineto.write(from_timeline(timeline, device=device, all_members=True), path)


def check_trace(path: str | Path) -> None:
    """Complain about a trace that could not be written, before the work."""
    if Path(path).suffix and not str(path).endswith((*SHOWN_ENDINGS, ".et")):
        raise TraceError(
            f"{path}: the suffix names no trace format",
            hint=f"use {', '.join(SHOWN_ENDINGS)}, .et, or a name without suffix for a folder of Kineto files",
        )
    check_place(path, is_folder=not Path(path).suffix)


def check_length(timeline: Timeline, path: str | Path) -> None:
    """Complain about a timeline of more operations than fit into memory, before the work."""
    n_spans = sum(n for _, n in timeline.counted)
    if n_spans > _MOST_WRITTEN:
        raise TraceError(
            f"{path}: {n_spans:,} operations: at most {_MOST_WRITTEN:,} are written",
            hint="a smaller --global-batch has the same steady state",
        )


def _with_counters(processes: tuple[Process, ...], memory: Mapping[int, Iterable[Counter]]) -> tuple[Process, ...]:
    return tuple(replace(process, counters=(*process.counters, *memory.get(process.rank, ()))) for process in processes)


def write_shown(processes: Iterable[Process], path: str | Path) -> None:
    """Write processes as Chrome JSON where the name asks for it, else as Perfetto protobuf."""
    as_json = str(path).endswith(CHROME_ENDINGS)
    (chrome_json.write if as_json else write_processes)(processes, path)


def write_processes(processes: Iterable[Process], path: str | Path) -> None:
    """Write processes as Perfetto protobuf, in the given order, gzipped where the name ends in ``.gz``.

    Of very many slices those that are too short to see are drawn together (:func:`~simulator.trace_io.tracks.thinned`).
    """
    with created(path) as file:
        _ProtoWriter(file).write(thinned(tuple(processes)))


class _ProtoWriter:
    """Streams packets: descriptors first, then the slices of one track after the other."""

    def __init__(self, file: IO[bytes]) -> None:
        from perfetto.trace_builder.proto_builder import StreamingTraceProtoBuilder

        self._builder: Any = StreamingTraceProtoBuilder(file)
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._arguments: dict[str, int] = {}
        self._uuid = 0

    def write(self, processes: Iterable[Process]) -> None:
        root = self._packet()
        root.sequence_flags = _SEQ_CLEARED
        root.track_descriptor.uuid = _ROOT
        root.track_descriptor.process_ordering = 1
        root.track_descriptor.thread_ordering = 1
        root.track_descriptor.child_ordering = _EXPLICIT
        self._builder.write_packet(root)
        for order, process in enumerate(processes):
            parent = self._process(order, process)
            for rank, track in enumerate(process.tracks):
                self._track(parent, rank, track)
            for rank, counter in enumerate(process.counters):
                self._counter(parent, len(process.tracks) + rank, counter)

    def _packet(self) -> Any:
        packet = self._builder.create_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.timestamp = 0
        return packet

    def _descriptor(self, name: str, parent: int | None, order: int) -> Any:
        self._uuid += 1
        packet = self._packet()
        descriptor = packet.track_descriptor
        descriptor.uuid = self._uuid
        descriptor.name = name
        descriptor.sibling_order_rank = order
        descriptor.sibling_merge_behavior = _NO_MERGE
        if parent is not None:
            descriptor.parent_uuid = parent
        return packet

    def _process(self, order: int, process: Process) -> int:
        packet = self._descriptor(process.name, None, order)
        packet.track_descriptor.process.pid = order + 1
        packet.track_descriptor.process.process_name = process.name
        packet.track_descriptor.child_ordering = _EXPLICIT
        self._builder.write_packet(packet)
        return self._uuid

    def _track(self, parent: int, order: int, track: Track) -> None:
        self._builder.write_packet(self._descriptor(track.name, parent, order))
        uuid = self._uuid
        open_slices: list[Slice] = []
        for piece in track.slices:
            while open_slices and open_slices[-1].end_ps <= piece.start_ps and open_slices[-1].depth >= piece.depth:
                self._end(uuid, open_slices.pop())
            self._begin(uuid, piece)
            open_slices.append(piece)
        while open_slices:
            self._end(uuid, open_slices.pop())

    def _begin(self, uuid: int, piece: Slice) -> None:
        packet = self._packet()
        packet.timestamp = piece.start_ps // 1000
        packet.sequence_flags = _SEQ_NEEDS_STATE
        event = packet.track_event
        event.type = 1
        event.track_uuid = uuid
        event.name_iid = self._intern(self._names, piece.name, packet.interned_data.event_names)
        event.category_iids.append(
            self._intern(self._categories, piece.category, packet.interned_data.event_categories)
        )
        if piece.flow:
            event.flow_ids.append(piece.flow)
        for key, value in piece.args.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._intern(self._arguments, key, packet.interned_data.debug_annotation_names)
            if isinstance(value, bool | int):
                annotation.int_value = value
            elif isinstance(value, float):
                annotation.double_value = value
            else:
                annotation.string_value = value
        self._builder.write_packet(packet)

    def _end(self, uuid: int, piece: Slice) -> None:
        packet = self._packet()
        packet.timestamp = piece.end_ps // 1000
        packet.track_event.type = 2
        packet.track_event.track_uuid = uuid
        self._builder.write_packet(packet)

    def _counter(self, parent: int, order: int, counter: Counter) -> None:
        packet = self._descriptor(counter.name, parent, order)
        packet.track_descriptor.counter.unit_name = counter.unit
        if counter.share_key:
            packet.track_descriptor.counter.y_axis_share_key = counter.share_key
        self._builder.write_packet(packet)
        uuid = self._uuid
        for time_ps, value in counter.points:
            packet = self._packet()
            packet.timestamp = time_ps // 1000
            packet.track_event.type = 4
            packet.track_event.track_uuid = uuid
            packet.track_event.double_counter_value = float(value)
            self._builder.write_packet(packet)

    @staticmethod
    def _intern(table: dict[str, int], text: str, entries: Any) -> int:
        iid = table.get(text)
        if iid is None:
            iid = table[text] = len(table) + 1
            entry = entries.add()
            entry.iid = iid
            entry.name = text
        return iid


def write_beside(simulated: Iterable[Process], measured: Iterable[Process], path: str | Path) -> None:
    """Write simulated and measured processes into one file that Perfetto opens as one timeline.

    Both are on clocks that start together. A ``path`` of ``*.tar`` gives an archive of two traces with a
    ``perfetto_manifest.json`` (Perfetto v58 or later), any other name one file in which the measured and the simulated
    rank follow each other.
    """
    if not str(path).endswith(".tar"):
        write_shown(sorted((*measured, *simulated), key=lambda process: (process.rank < 0, process.rank)), path)
        return
    files = {"simulated.pftrace": tuple(simulated), "measured.pftrace": tuple(measured)}
    entries: list[dict[str, Any]] = [
        {"path": name, "machine": {"name": name.split(".", maxsplit=1)[0]}} for name in files
    ]
    entries[1]["clocks"] = {"sync_to": {"file": "simulated.pftrace", "clock": "BOOTTIME"}, "offset_ns": 0}
    with tarfile.open(path, "w") as archive:
        manifest = msgspec.json.encode({"perfetto_manifest": {"version": 1, "files": entries}})
        _add(archive, "perfetto_manifest.json", manifest)
        for name, processes in files.items():
            buffer = BytesIO()
            _ProtoWriter(buffer).write(processes)
            _add(archive, name, buffer.getvalue())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, BytesIO(content))
