"""Prints one line a step, and remembers whether one failed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable

PASS, FAIL, NOTE = "pass", "FAIL", "note"


class Report:
    """Steps of a check, each with its result and the time it took."""

    def __init__(self) -> None:
        self.failed = False

    def step(self, title: str, function: Callable[[], str]) -> bool:
        """Run one step; whatever it raises is its failure. Returns whether it passed."""
        start = time.perf_counter()
        try:
            detail, result = function(), PASS
        except Exception as error:  # one failed step must not hide the others
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f" ({frame.name}, line {frame.lineno})" if not str(error) else ""
            detail, result = f"{type(error).__name__}: {error}{place}", FAIL
            self.failed = True
        self.line(result, title, detail, time.perf_counter() - start)
        return result == PASS

    def line(self, result: str, title: str, detail: str, seconds: float | None = None) -> None:
        """Print a line."""
        took = f" [{seconds:.1f} s]" if seconds is not None else ""
        print(f"{result}  {title}: {detail}{took}", flush=True)
