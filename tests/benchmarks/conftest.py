"""Benchmarks measure when they are asked for by name, and run once, small and unmeasured, with all other tests."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Enable benchmarks if everything that was asked for lies in this folder."""
    given = [str(word) for word in config.invocation_params.args]
    paths = [(config.invocation_params.dir / word.partition("::")[0]).resolve() for word in config.args]
    if all(path.is_relative_to(HERE) for path in paths) and "--benchmark-disable" not in given:
        config.option.benchmark_disable = False


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what benchmarks measured themselves: CPU seconds and peak memory of processes of their own."""
    session = getattr(config, "_benchmarksession", None)
    measured = [found for found in getattr(session, "benchmarks", ()) if found.extra_info]
    if measured:
        terminalreporter.section("CPU time and memory")
    for found in measured:
        values = ", ".join(f"{key} {value:.4g}" for key, value in found.extra_info.items())
        terminalreporter.write_line(f"{found.name}: {values}")
