"""Measurement tables: read any CSV in the documented columns, predict every row, say how wrong that is."""
