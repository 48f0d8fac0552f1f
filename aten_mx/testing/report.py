"""What a conformance run found: one verdict per case."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from aten_mx.commands.text import one_line, shown_name
from aten_mx.version import __version__

MOST_SHOWN = 20  # failures printed; the JSON has all


@dataclass(frozen=True)
class Result:
    """One case: its name, and what was wrong (empty where it passed)."""

    name: str
    mismatch: str = ""

    @property
    def passed(self) -> bool:
        """Whether the case holds."""
        return not self.mismatch


@dataclass
class Report:
    """All cases of a run on one device.

    Args:
        device: where the ops ran.
        kernels: for each overload, which kernel answered there.
        results: every case, in the order run.
    """

    device: str
    kernels: dict[str, str]
    results: list[Result] = field(default_factory=list)

    @property
    def failures(self) -> list[Result]:
        """The cases that do not hold."""
        return [result for result in self.results if not result.passed]

    @property
    def passed(self) -> bool:
        """Whether there were cases and all hold."""
        return bool(self.results) and not self.failures

    def as_dict(self) -> dict[str, Any]:
        """The report as plain data: versions, device, kernels, and every case with its verdict."""
        return {
            "aten_mx": __version__,
            "torch": torch.__version__,
            "device": self.device,
            "kernels": self.kernels,
            "passed": len(self.results) - len(self.failures),
            "failed": len(self.failures),
            "cases": [_case(result) for result in self.results],
        }

    def to_json(self) -> str:
        """:meth:`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=1)

    def __str__(self) -> str:
        lines = [f"{overload}: {shown_name(kernel)}" for overload, kernel in self.kernels.items()]
        failures = self.failures
        for result in failures[:MOST_SHOWN]:
            lines.append(one_line(f"FAIL {result.name}: {result.mismatch}"))
        if len(failures) > MOST_SHOWN:
            lines.append(f"... and {len(failures) - MOST_SHOWN} more")
        lines.append(f"{self.device}: {len(self.results)} cases, {len(failures)} failed")
        return "\n".join(lines)


def _case(result: Result) -> dict[str, str]:
    check = result.name.split(":")[0]
    return {"check": check, **asdict(result), "verdict": "pass" if result.passed else "fail"}
