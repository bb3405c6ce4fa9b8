"""What a round costs: measured device times by batch and width, in nanoseconds. Pure.

A CUDA graph costs its padded shape, the CPU's callable the rows it really verified. So each shape keeps a fading line
through (rows, time); where it has seen one count of rows only, the slope is that from the width-one round.
"""

from __future__ import annotations

from dataclasses import dataclass

MEMORY = 0.95
GUESSED_SLOPE = 0.15
"""Cost of an unmeasured further row, in width-one rounds: low, so that a width which promises much gets measured."""
OUTLIER = 4.0
_RIDGE = 2.0


@dataclass(slots=True)
class _Line:
    """Fading sums over rounds of one shape."""

    weight: float = 0.0
    rows: float = 0.0
    time: float = 0.0
    rows_squared: float = 0.0
    rows_time: float = 0.0

    def add(self, rows: int, time: float) -> None:
        self.weight = self.weight * MEMORY + 1.0
        self.rows = self.rows * MEMORY + rows
        self.time = self.time * MEMORY + time
        self.rows_squared = self.rows_squared * MEMORY + rows * rows
        self.rows_time = self.rows_time * MEMORY + rows * time

    @property
    def mean_time(self) -> float:
        return self.time / self.weight

    @property
    def mean_rows(self) -> float:
        return self.rows / self.weight

    def slope(self, believed: float) -> float:
        """Time of a further row; what is `believed` counts where the rows hardly varied."""
        mean_rows = self.mean_rows
        variance = self.rows_squared / self.weight - mean_rows * mean_rows
        covariance = self.rows_time / self.weight - mean_rows * self.mean_time
        ridge = _RIDGE / self.weight
        return max((covariance + ridge * believed) / (variance + ridge), 0.0)


@dataclass(frozen=True, slots=True)
class Price:
    """Cost of one shape: `start` + `slope` a row, never below the width-one round `base`. Nanoseconds."""

    base: float
    start: float
    slope: float

    def at(self, rows: int) -> float:
        return max(self.start + self.slope * rows, self.base)


class RoundCosts:
    """Costs of generation rounds. `rows` counts verified rows of all lanes together."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int], _Line] = {}

    def measure(self, batch: int, width: int, rows: int, nanoseconds: int) -> None:
        """Takes one completed round in; a hiccup of the machine counts as four rounds at most."""
        line = self._lines.setdefault((batch, width), _Line())
        time = float(nanoseconds)
        if line.weight > 0:
            time = min(time, OUTLIER * max(line.mean_time, 1.0))
        line.add(rows, time)

    def ready(self, batch: int) -> bool:
        """Whether the width-one round of a batch has been measured, which all else is compared with."""
        return (batch, 1) in self._lines

    def base(self, batch: int, lanes: int) -> float:
        """A width-one round over `lanes`. Needs `ready`."""
        line = self._lines[batch, 1]
        return max(line.mean_time + line.slope(0.0) * (lanes - line.mean_rows), 1.0)

    def price(self, batch: int, width: int, lanes: int) -> Price:
        """What rounds of `width` over `lanes` cost. Needs `ready`."""
        base = self.base(batch, lanes)
        if width == 1:
            return Price(base, base, 0.0)
        line = self._lines.get((batch, width))
        if line is None:
            slope = self._guess(batch, width, base, lanes)
            return Price(base, base - slope * lanes, slope)
        slope = line.slope(_chord(line, base, lanes))
        return Price(base, line.mean_time - slope * line.mean_rows, slope)

    def _guess(self, batch: int, width: int, base: float, lanes: int) -> float:
        """Cost of a further row at an unmeasured width: as at the nearest measured one, if there is any."""
        measured = [other for of, other in self._lines if of == batch and other > 1]
        if not measured:
            return GUESSED_SLOPE * base / lanes
        nearest = min(measured, key=lambda other: abs(other - width))
        return _chord(self._lines[batch, nearest], base, lanes)


def _chord(line: _Line, base: float, lanes: int) -> float:
    """Cost of a further row on the way from the width-one round to a line's middle."""
    further = line.mean_rows - lanes
    return max(line.mean_time - base, 0.0) / further if further > 0.5 else GUESSED_SLOPE * base / lanes
