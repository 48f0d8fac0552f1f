"""A run's last lines: which kernel gave the right bytes, by op and element format.

A test that compares bytes says whose: ``@pytest.mark.proves("native CPU", "quantize_mx")``, without
an op for both. "under test" stands for the kernel that the run is pointed at. The format is the
test's parameter ``fmt``; without one, the test covers them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest
import under_test

from aten_mx.formats import FORMATS
from aten_mx.overloads import OPS

PROPERTY = "proves"


def mark_items(items: Iterable[pytest.Item]) -> None:
    """Note on each item what it proves; the note travels with its report, from workers too."""
    for item in items:
        for marker in item.iter_markers("proves"):
            kernel, *ops = marker.args
            kernel = under_test.KERNEL if kernel == "under test" else kernel
            params = item.callspec.params if hasattr(item, "callspec") else {}
            formats = [params["fmt"]] if params.get("fmt") in FORMATS else list(FORMATS)
            item.user_properties.append((PROPERTY, [kernel, ops or list(OPS), formats]))


def table(reports: Iterable[pytest.TestReport]) -> list[str]:
    """A line per kernel and op: the number of tests by format, ``FAIL`` where one failed."""
    tests: dict[tuple[str, str, str], int] = defaultdict(int)
    failed: set[tuple[str, str, str]] = set()
    for report in reports:
        for name, value in report.user_properties:
            if name != PROPERTY:
                continue
            kernel, ops, formats = value
            cells = [(kernel, op, fmt) for op in ops for fmt in formats]
            for cell in cells:
                tests[cell] += 1
            if report.failed:
                failed.update(cells)
    if not tests:
        return []
    lines = [f"{'tests of bytes':24}{'':14}" + "".join(f"{fmt:>10}" for fmt in FORMATS)]
    for kernel in dict.fromkeys(cell[0] for cell in sorted(tests)):
        for op in OPS:
            cells = [(kernel, op, fmt) for fmt in FORMATS]
            counts = ("FAIL" if cell in failed else str(tests.get(cell, "-")) for cell in cells)
            lines.append(f"{kernel:24}{op:14}" + "".join(f"{count:>10}" for count in counts))
    return lines
