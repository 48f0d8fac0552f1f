"""``torch.quantize_mx`` and friends, as the proposal to PyTorch core would spell them."""

from __future__ import annotations

from typing import Any

import torch

from aten_mx.functional import FRONT_DOORS

_ALIASES: tuple[tuple[Any, str, Any], ...] = tuple(
    (owner, function.__name__, function)
    for owner in (torch, torch.Tensor)
    for function in FRONT_DOORS
)


def install_torch_alias() -> None:
    """Make ``torch.quantize_mx``, ``torch.dequantize_mx`` and the ``Tensor`` methods available.

    They are :func:`aten_mx.quantize_mx` and :func:`aten_mx.dequantize_mx` themselves, so Dynamo
    traces them. Calling it again changes nothing.

    Raises:
        RuntimeError: PyTorch, or something else, already has an attribute of such a name. It
            stays, and nothing is installed.

    Example::

        >>> import torch, aten_mx
        >>> aten_mx.install_torch_alias()
        >>> output, scale = torch.ones(2, 64).quantize_mx(dim=-1)
        >>> torch.dequantize_mx(output, scale).shape
        torch.Size([2, 64])
        >>> aten_mx.remove_torch_alias()
        >>> hasattr(torch, "quantize_mx")
        False
    """
    for owner, name, function in _ALIASES:
        present = getattr(owner, name, function)
        if present is not function:
            raise RuntimeError(
                f"{_owner_name(owner)}.{name} already exists ({present!r}); it stays as it is, and "
                f"aten_mx.{name} remains available under its own name"
            )
    for owner, name, function in _ALIASES:
        setattr(owner, name, function)


def remove_torch_alias() -> None:
    """Undo :func:`install_torch_alias`; an attribute that isn't ours stays."""
    for owner, name, function in _ALIASES:
        if getattr(owner, name, None) is function:
            delattr(owner, name)


def _owner_name(owner: Any) -> str:
    return "torch" if owner is torch else "torch.Tensor"
