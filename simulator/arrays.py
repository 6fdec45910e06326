"""Types of NumPy arrays, as signatures name them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
#: numbers by which other arrays are indexed
IndexArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
