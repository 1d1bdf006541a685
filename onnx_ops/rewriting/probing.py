"""Numbers for what forms leave open: sizes, variables, coordinates, and an image."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .reading.affine import Array, Dimension, Variable, variables_of
from .reading.evaluation import Evaluation, are_inside
from .reading.forms import Form, positions_in, value_of
from .reading.reader import Reader
from .sizes import Unknown, evaluated

FAR = 1000.0  # pixels
NEAR_ENDS = np.arange(-4, 5)  # pixels beside the first one, and beside the end
WITHIN = 0, 1e-3, 0.3, 0.499, 0.501, 1 - 1e-3  # places between two pixels
CELLS = 40  # that are drawn between the ends
LONGER = 7  # than its least value an open size is drawn


class Sizes:
    """Draws a number for each open size."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self._numbers: dict[str, int] = {}

    def unknown(self, name: str) -> int:
        """Return the number of an unknown."""
        if name not in self._numbers:
            least = name.least if isinstance(name, Unknown) else None
            self._numbers[name] = max(1, least or 0) + int(self.rng.integers(0, LONGER))
        return self._numbers[name]

    @property
    def has_open_sizes(self) -> bool:
        """Return whether any size has been drawn."""
        return bool(self._numbers)

    def size(self, size: Dimension) -> int:
        """Return a size as a number."""
        return evaluated(size, self.unknown)


class Draw(Sizes):
    """Draws numbers for the variables of forms, at so many points.

    free  the variables of forms that aren't picked, of what isn't in known forms
    """

    def __init__(
        self,
        reader: Reader,
        forms: Iterable[Form],
        known: Iterable[Form],
        seed: int,
        count: int,
    ):
        super().__init__(seed)
        self.reader = reader
        self.count = count
        self.inside = _inside(reader, forms, known)
        positions = (position for form in self.inside for position in positions_in(form))
        self.free: list[Variable] = sorted(
            variables_of(positions) - reader.forms.picks.keys(), key=lambda variable: variable.name
        )
        self.values = {
            variable.name: self.rng.integers(0, max(1, self.size(variable.size)), self.count)
            for variable in self.free
        }

    def evaluation(self, values: Mapping[Form, Array]) -> Evaluation:
        """Return the evaluation at the points, given the numbers that some forms are."""
        return Evaluation(self.reader, self.values, self.picture, self.unknown, self.count, values)

    def picture(self, root: str, index: list[Array]) -> Array:
        """Return elements of an image that has another number at each pixel, and 0 outside."""
        sizes = map(self.size, self.reader.shape(root))
        is_inside = are_inside(index, sizes)
        mixed = sum((axis + 1.7) * 12.9898 * i for axis, i in enumerate(index))
        return np.where(is_inside, np.modf(np.sin(mixed) * 43758.5)[0], 0)

    def coordinates(self, sizes: Sequence[int]) -> list[Array]:
        """Return coordinates along axes: in cells, beyond, and beside numbers that are compared."""
        values = (value_of(form) for form in self.inside)
        compared = np.array([0.0, *(v for v in values if v is not None and abs(v) < FAR**2)])
        return [self.rng.choice(self._along(size, compared), self.count) for size in sizes]

    def _along(self, size: int, compared: Array) -> Array:
        between = self.rng.integers(-2, size + 2, CELLS)
        cells = np.concatenate([NEAR_ENDS, size + NEAR_ENDS, between])
        inside = cells[:, None] + [*WITHIN, self.rng.random()]
        beside = compared[:, None] + [-1e-3, 0, 1e-3]
        return np.concatenate([inside.ravel(), beside.ravel(), [FAR + 0.3, -FAR - 0.4]])


def _inside(reader: Reader, forms: Iterable[Form], known: Iterable[Form]) -> list[Form]:
    """Return all forms in forms, each once."""
    stops = dict.fromkeys(known)
    return [*dict.fromkeys(f for form in forms for f in reader.forms.walk(form, stops))]
