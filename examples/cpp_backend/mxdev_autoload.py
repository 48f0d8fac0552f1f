"""Importing this loads the device and its kernels: what an installed backend's entry point does.

python -m aten_mx conformance --device mxdev --import mxdev_autoload
"""

import mxdev

mxdev.load_device()
mxdev.load_kernels()
mxdev.load_scaled_mm()
calls = mxdev.calls
