"""The emulated kernel under the address that version 0.1.0 documented.

New code imports :mod:`aten_mx.emulated`. This module goes in 1.0.
"""

from aten_mx.emulated import dequantize_mx, quantize_mx

__all__ = ["dequantize_mx", "quantize_mx"]
