"""Traces in and out: profiler formats to and from Program and Timeline, one format in one file."""
