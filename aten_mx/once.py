"""Refuses an import where the operators are registered already, and says what to do.

PyTorch keeps an operator for the life of the process. ``importlib.reload(aten_mx)`` and an import
after a failed one find the modules that registered them. If those modules were removed from
``sys.modules``, an import cannot continue.
"""

from __future__ import annotations

import sys

import torch

if "aten_mx.schema" not in sys.modules and hasattr(torch.ops.aten_mx, "quantize_mx"):
    raise ImportError(
        "aten_mx: its operators are registered with PyTorch already, and a process can register "
        "them once. If its modules were removed from sys.modules, keep them there "
        "(importlib.reload(aten_mx) works). If its C++ library was loaded first, import aten_mx "
        "before that"
    )
