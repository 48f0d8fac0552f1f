"""Fused kernels in Triton, for NVIDIA, AMD and Intel GPUs.

``impl.py`` decides which calls they take and imports no Triton. ``launch.py`` makes a launch from
shapes and strides. ``triton_kernels.py`` and ``elements.py`` are the kernels.
"""

from aten_mx.backends.triton.impl import dequantize_mx, quantize_mx

__all__ = ["dequantize_mx", "quantize_mx"]
