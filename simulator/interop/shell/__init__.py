"""Launch scripts in the language of bash: read, followed and never run.

From below: :mod:`~simulator.interop.shell.syntax` and :mod:`~simulator.interop.shell.parser` make statements of a text,
:mod:`~simulator.interop.shell.state` to :mod:`~simulator.interop.shell.builtins` say what words, conditions and builtins
mean, :mod:`~simulator.interop.shell.script` walks the statements.
"""

from __future__ import annotations

from simulator.interop.shell.script import read_script
from simulator.interop.shell.state import Command, Script

__all__ = ["Command", "Script", "read_script"]
