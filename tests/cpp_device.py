"""``examples/cpp_backend``'s device in tests: its kernels' calls, and tensors there and back."""

from __future__ import annotations

from typing import Any

from sample_calls import assert_same, flat
from torch import Tensor
from under_test import on_device


class Calls:
    """How often the device's kernels ran: quantize_mx's, then dequantize_mx's."""

    def __init__(self) -> None:
        import mxdev

        self._library = mxdev.load_kernels()  # loaded before; this gives the same library again
        self._seen = self._total()

    def _total(self) -> tuple[int, int]:
        return self._library.quantize_mx_calls(), self._library.dequantize_mx_calls()

    def new(self) -> tuple[int, int]:
        """Calls since this was last asked."""
        before, self._seen = self._seen, self._total()
        return self._seen[0] - before[0], self._seen[1] - before[1]


def to_device(tensor: Tensor) -> Tensor:
    """The same bytes and strides over there."""
    return on_device(tensor, "mxdev")


def check_same(results: Any, expected: Any) -> None:
    """Results on the device against the CPU's, to the byte and the stride."""
    results, expected = flat(results), flat(expected)
    assert [t.device.type for t in results] == ["mxdev"] * len(expected)
    assert [t.stride() for t in results] == [t.stride() for t in expected]
    assert_same([t.cpu() for t in results], expected)
