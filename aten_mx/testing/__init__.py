"""The conformance kit: one run checks a backend against the whole specification.

``python -m aten_mx conformance --device DEVICE`` runs it from a shell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from aten_mx.overloads import OPS, OVERLOADS
from aten_mx.registry import kernels
from aten_mx.testing import checks, graph_checks
from aten_mx.testing.checks import Cases, Target
from aten_mx.testing.report import Report, Result
from aten_mx.torch_compat import key_of_device
from aten_mx.torch_compat.compiler import has_compile_backend

__all__ = ["CHECKS", "Report", "Result", "answering_kernels", "check_kernel"]

CHECKS: dict[str, Callable[[Target], Cases]] = {
    check.__name__: check
    for check in (
        checks.golden,
        checks.maxima,
        checks.codes,
        checks.layouts,
        checks.swizzled,
        graph_checks.fresh_outputs,
        graph_checks.errors,
        graph_checks.fakes,
        graph_checks.autograd,
        graph_checks.vmap,
        graph_checks.compiled,
        graph_checks.flush_to_zero,
    )
}
"""The checks by name, in the order they run."""

_INDUCTOR_DEVICES = ("cpu", "cuda", "xpu", "mps")


def check_kernel(
    device: torch.device | str,
    ops: Iterable[str] = OPS,
    *,
    checks: Iterable[str] = tuple(CHECKS),
    compile_backend: str | None = None,
    progress: Callable[[Result], None] | None = None,
) -> Report:
    """Compare the kernels of ``device`` with the specification, byte for byte.

    Args:
        device: where the ops run; they are called through the dispatcher, so whatever kernel
            answers there is checked, the emulated one if there is no other.
        ops: ``"quantize_mx"``, ``"dequantize_mx"`` or both.
        checks: which of :data:`CHECKS` to run.
        compile_backend: for ``torch.compile``; by default Inductor where it knows the device, else
            ``"aot_eager"``.
        progress: called with each result as it comes.

    Returns:
        A :class:`Report` with a verdict for every case. A mismatch holds the input's bits and both
        bytes. A kernel that raises fails its case.

    Raises:
        ValueError: unknown op, check or compile backend; the meta device, which has no values.
        RuntimeError: PyTorch has no such device.

    Example::

        >>> from aten_mx.testing import check_kernel
        >>> report = check_kernel("cpu", checks=["errors", "fakes"])
        >>> report.passed
        True
    """
    ops, checks = tuple(ops), tuple(checks)
    for name, known in [*((op, OPS) for op in ops), *((check, CHECKS) for check in checks)]:
        if name not in known:
            raise ValueError(f"check_kernel: {name} is none of {', '.join(known)}")
    device = torch.device(device)
    if device.type == "meta":
        raise ValueError("check_kernel: tensors on meta have no bytes to check")
    try:
        torch.empty(1, device=device)  # a missing device is the run's fault and no case's
    except Exception as error:
        raise RuntimeError(f"check_kernel: no device {device} here: {error}") from error
    if compile_backend is None:
        compile_backend = "inductor" if device.type in _INDUCTOR_DEVICES else "aot_eager"
    if not has_compile_backend(compile_backend):
        raise ValueError(f"check_kernel: no compile backend {compile_backend}")
    target = Target(device, ops, compile_backend)
    report = Report(str(device), answering_kernels(device))
    for check in checks:
        for name, case in CHECKS[check](target):
            report.results.append(_run(name, case))
            if progress:
                progress(report.results[-1])
    return report


def _run(name: str, case: Callable[[], str]) -> Result:
    try:
        return Result(name, case())
    except Exception as error:  # whatever a kernel raises is its case's result
        text = str(error).strip() or "no text"
        return Result(name, f"{type(error).__name__}: {text.splitlines()[0]}")


def answering_kernels(device: torch.device | str) -> dict[str, str]:
    """Say which kernel answers for each overload on a device.

    Args:
        device: the device, which need not be there.

    Returns:
        By overload, the kernel and in parentheses its dispatch key, which is
        ``CompositeImplicitAutograd`` for the emulated one.

    Raises:
        RuntimeError: PyTorch has no device type of that name.
    """
    rows = {(row.op, row.dispatch_key): row.kernel for row in kernels()}
    key = key_of_device(torch.device(device).type)
    answers = {}
    for overload in (row.name for row in OVERLOADS):
        own = key if (overload, key) in rows else "CompositeImplicitAutograd"
        answers[overload] = f"{rows[overload, own]} ({own})"
    return answers
