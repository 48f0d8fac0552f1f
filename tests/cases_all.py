"""The rows of all tables of quantization, as one list."""

from cases_elements import ELEMENT_CASES
from cases_extremes import EXTREME_CASES
from cases_scale import SCALE_CASES

QUANTIZE_CASES = [*SCALE_CASES, *EXTREME_CASES, *ELEMENT_CASES]
