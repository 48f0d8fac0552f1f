"""The kernels of this package: the native CPU kernel and the Triton kernels."""
