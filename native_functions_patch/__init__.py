"""``quantize_mx`` and ``dequantize_mx`` as files and diffs of PyTorch core; see README.md."""
