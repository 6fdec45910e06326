"""What came of one row: the prediction beside the measurement, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.analysis.side_by_side import relative_error
from simulator.errors import SimulatorError
from validation.tables.many_jobs import Tell
from validation.tables.reader import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A measured row and what the simulator says about it."""

    row: Row  #: The measurement.
    predicted: float | None = None  #: In the unit of the row's metric; None where there is no prediction.
    reason: str = ""  #: Why there is none; empty otherwise.
    assumed: tuple[str, ...] = ()  #: What the row does not state and which rule filled it.
    #: Ends of the 80 % interval, where one is given.
    low: float | None = None
    high: float | None = None
    note: str = ""  #: Something to know about a prediction that was made: what was chosen, a warning.
    #: Seconds of a predicted iteration by what they are spent on; they add up to it. Empty elsewhere.
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def relative_error(self) -> float | None:
        """``predicted / measured - 1``; for verdicts (0 or 1) ``predicted - measured``."""
        if self.predicted is None:
            return None
        measured = self.row.measured
        if self.row.metric == "fits":
            return self.predicted - measured
        return relative_error(self.predicted, measured)

    @property
    def covered(self) -> bool | None:
        """Whether the measurement lies in the interval; None without one."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.row.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Return the row of the JSON document."""
        row = self.row
        document: dict[str, Any] = {
            "row_id": row.row_id,
            "line": row.line,
            "source": row.key("source"),
            "metric": row.metric,
            "predicted": self.predicted,
            "measured": row.measured,
            "relative_error": self.relative_error,
        }
        for column in ("topology", "device", "split"):
            if row.text(column):
                document[column] = row.text(column)
        if self.low is not None and self.high is not None:
            document["low"], document["high"] = self.low, self.high
        for name in ("reason", "note"):
            if getattr(self, name):
                document[name] = getattr(self, name)
        if self.assumed:
            document["assumed"] = list(self.assumed)
        return document


#: predicts rows of one kind: told how many are done, over so many processes
Predictor = Callable[[Sequence[Row], Tell | None, int], list[Outcome]]


def one_by_one(predict_us: Callable[[Row], tuple[float, str]]) -> Predictor:
    """Return what predicts rows in this process, one after the other, from the microseconds of one and a note about it."""

    def predict(rows: Sequence[Row], tell: Tell | None = None, n_processes: int = 1) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for row in rows:
            if tell is not None:
                tell(len(outcomes), len(rows))
            try:
                predicted, note = predict_us(row)
                outcomes.append(Outcome(row=row, predicted=predicted, note=note))
            except SimulatorError as error:
                outcomes.append(Outcome(row=row, reason=error.message))
        return outcomes

    return predict
