"""Lowering: a model and a plan become the program that a training framework would run."""

from __future__ import annotations
