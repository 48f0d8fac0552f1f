"""The commands of ``python -m aten_mx`` and what they share: text, files, output streams."""
