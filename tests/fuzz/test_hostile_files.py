"""Every reader of files and every hostile file: an error that names the file, or something read, in bounded memory and never a hang."""

import os
from pathlib import Path

import pytest

from simulator.errors import SimulatorError
from tests.fuzz.hostile import INPUTS, READERS, structured_seeds, with_wrong_values
from tests.fuzz.running import limits

#: beyond what the program has anyway
MEBIBYTES = 500


def complaint(read, path):
    """Return what a reader says of a file; empty where it reads something."""
    try:
        read(path)
    except SimulatorError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reader", READERS)
def test_hostile_files_end_in_errors_of_ours(reader, tmp_path):
    path = tmp_path / "file.yaml"
    with limits(MEBIBYTES << 20):
        for what, data in INPUTS.items():
            path.write_bytes(data)
            said = complaint(READERS[reader], path)
            assert str(path) in said or not said, f"{what}: {said}"


@pytest.mark.parametrize("what", INPUTS)
def test_each_hostile_file_is_refused_where_its_kind_is_not_known(what, tmp_path):
    for ending in (".json", ".txt"):
        path = tmp_path / f"file{ending}"
        path.write_bytes(INPUTS[what])
        with limits(MEBIBYTES << 20):
            assert str(path) in complaint(READERS["any import"], path)


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_an_error_and_not_waited_for(reader, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "missing", tmp_path, pipe, Path("/dev/full")):
        with limits(MEBIBYTES << 20):
            assert str(path) in complaint(READERS[reader], path)


def test_any_value_may_be_of_any_type(tmp_path):
    path, n_read = tmp_path / "file.json", 0
    with limits(MEBIBYTES << 20):
        for kind, text in structured_seeds():
            for wrong in with_wrong_values(text):
                path.write_text(wrong)
                complaint(READERS[kind], path)
                n_read += 1
    assert n_read > 500
