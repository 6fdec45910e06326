"""A text as the file of a user: what it is recognised as, and what it says."""

from simulator.interop import import_settings, recognise


def read(tmp_path, text, name="file.yaml", **options):
    path = tmp_path / name
    path.write_text(text)
    kinds = recognise(path)
    assert len(kinds) == 1, kinds
    return import_settings(path, options=options)
