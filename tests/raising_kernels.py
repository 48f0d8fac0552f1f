"""Plugin of pytest (``-p raising_kernels``): no kernel gives an answer, on the CPU or emulated.

With it the tests must still be collected: a broken kernel is a failed test that says what broke,
not a file that cannot be read.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from aten_mx import emulated
from aten_mx.overloads import OVERLOADS


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise AssertionError("a kernel ran")


def pytest_configure() -> None:
    # Not when the file is imported: the search for doctests imports every file of the tests.
    for row in OVERLOADS:
        _library.impl(row.qualified_name, refuse, "CPU")
    for name in ("quantize_mx", "dequantize_mx", "emulate_quantize", "emulate_dequantize"):
        setattr(emulated, name, refuse)


_library = torch.library.Library("aten_mx", "IMPL")
