"""Where PyTorch itself is at fault, and the releases in which it is: all that differs between them.

The tests so marked fail strictly: where a fault is gone they say so. Its line goes with the last
supported release that has it.
"""

from __future__ import annotations

import pytest
import torch
from torch._export.serde.serialize import SerializeError

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _fault(
    reason: str, raises: type[Exception], gone_in: tuple[int, int] | None = None
) -> pytest.MarkDecorator:
    """An expected failure, up to the release before ``gone_in``."""
    return pytest.mark.xfail(gone_in is None or gone_in > VERSION, raises=raises, reason=reason)


STRIDES_OF_EMPTY_VIEWS = _fault(
    "Inductor (2.13) gives a view of an empty tensor strides of 0: (x + 1).view(int32)",
    AssertionError,
    gone_in=(2, 14),
)
NEGATIVE_BIT_IGNORED = _fault(
    "Inductor (2.13 to 2.15) ignores the negative bit of a graph's input: x + 1 too", AssertionError
)
FLOAT4_NOT_SERIALIZED = _fault(
    "PyTorch (2.13 to 2.15) has no serialized name for float4_e2m1fn_x2", SerializeError
)
STRICTER_META_OF_2_13 = pytest.mark.skipif(
    VERSION >= (2, 14), reason="2.14's meta function of _scaled_mm_v2 takes these scales"
)
