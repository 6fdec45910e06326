"""Real jobs, an emulated cluster and measured tables: predicted against measured.

What a user gets wrong and what a machine refuses raises a :class:`simulator.errors.SimulatorError` that names the way out.
"""
