"""Factors on the parts of iterations, and sources left out."""

import json

import numpy as np
import pytest

from simulator.errors import CalibrationError
from tests.validation.tables.rows import training_row
from validation.tables.outcome import Outcome
from validation.tables.shares import PARTS, fit_shares


def rows_of(factors, n_sources=8, n_rows=20, noise=0.0):
    """Predicted parts whose measurement is their sum with each part times its factor."""
    rng = np.random.default_rng(3)
    outcomes = []
    for source in range(n_sources):
        for _ in range(n_rows):
            spent = dict(zip([keys[0] for keys in PARTS.values()], rng.dirichlet(np.ones(len(PARTS))), strict=True))
            measured = sum(f * s for f, s in zip(factors, spent.values(), strict=True)) * float(rng.normal(1, noise))
            row = training_row(source=f"s{source}", value=str(measured))
            outcomes.append(Outcome(row=row, predicted=sum(spent.values()), parts=spent))
    return outcomes


def test_factors_are_found_again():
    fit = fit_shares(rows_of((1.1, 1.3, 0.9, 1.0), n_sources=40, noise=0.01))
    assert [factor.value for factor in fit.factors] == pytest.approx([1.1, 1.3, 0.9, 1.0], rel=0.03)
    assert all(0 <= factor.uncertainty < 0.03 for factor in fit.factors)
    assert sum(factor.share for factor in fit.factors) == pytest.approx(1.0)


def test_a_source_left_out_is_helped_by_others_that_err_alike():
    fit = fit_shares(rows_of((1.2, 1.2, 1.2, 1.2)))
    assert all(one.refitted < 0.1 * one.as_shipped for one in fit.left_out)
    assert all(one.bias_as_shipped == pytest.approx(1 / 1.2 - 1) for one in fit.left_out)


def test_one_wild_source_moves_the_factors_little():
    wild = [o for o in rows_of((3.0, 3.0, 3.0, 3.0), n_sources=9) if o.row.key("source") == "s8"]
    fit = fit_shares([*rows_of((1.0, 1.0, 1.0, 1.0)), *wild])
    assert all(abs(factor.value - 1.0) < 0.05 for factor in fit.factors)


def test_without_rows_that_say_anything_factors_stay_one():
    outcomes = rows_of((1.0, 1.0, 1.0, 1.0), n_sources=2, n_rows=1)
    assert [f.value for f in fit_shares(outcomes).factors] == pytest.approx([1.0] * len(PARTS), abs=1e-6)


def test_one_source_cannot_be_left_out():
    with pytest.raises(CalibrationError, match="takes two"):
        fit_shares(rows_of((1.0,) * len(PARTS), n_sources=1))


def test_the_command(capsys):
    from simulator.cli.calibrate import training

    training("training.csv", where=["gpus=1", "seq_len=1024"], leave_one_out=True, processes=1, json_output=True)
    fit = json.loads(capsys.readouterr().out)
    assert {factor["part"] for factor in fit["factors"]} == set(PARTS)
    assert len(fit["left_out"]) >= 2
