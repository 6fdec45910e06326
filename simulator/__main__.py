"""``python -m simulator`` is ``simulate``."""

from __future__ import annotations

from simulator.cli.main import main

if __name__ == "__main__":
    main()
