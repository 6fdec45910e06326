"""The command line, called as a user calls it."""

import pytest

from simulator.cli.main import main


@pytest.fixture
def simulate(monkeypatch, capsys):
    """Run one command line: exit status, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return int(exit_.value.code or 0), printed.out, printed.err

    return run
