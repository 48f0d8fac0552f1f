"""Which error a call with two faults gets, and what the dispatcher itself refuses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
import torch
from error_calls import E4M3, SAME, back, back_fmt, base, error_of, fmt, raw, zeros
from sample_calls import QUANTIZE, Sample
from support import case
from torch import Tensor

pytestmark = pytest.mark.contract

Change = Callable[[dict[str, Any]], None]


def setting(**changes: Any) -> Change:
    return lambda arguments: arguments.update(changes)


def changing(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda arguments: arguments.update({name: change(arguments[name])})


def sparse(x: Tensor) -> Tensor:
    """On the CPU: not every device has sparse tensors."""
    return x.to(torch.float32).cpu().to_sparse()


# One fault of each row in the table's order, each to be made in an otherwise valid call.
FAULTS: dict[str, list[tuple[str, Change]]] = {
    "base": [
        ("1", changing("x", Tensor.double)),
        ("2", setting(dim=7)),
        ("4", setting(dtype=torch.uint8)),
        ("5", setting(mode=9)),
        ("6", setting(block_size=0)),
    ],
    "fmt": [
        ("1", changing("x", Tensor.double)),
        ("2", setting(dim=7)),
        ("3", setting(elem_format="fp5")),
        ("5a", setting(mode=9)),
        ("5b", setting(swizzle=9)),
        ("6", setting(block_size=0)),
        ("7", setting(swizzle=1, dim=0)),
    ],
    "back": [
        ("1", changing("x", sparse)),
        ("2", setting(dim=7)),
        ("4", setting(dtype=torch.uint8)),
        ("6", setting(block_size=0)),
        ("8a", changing("x", lambda x: x.view(torch.uint8))),
        ("8b", changing("scale", lambda s: s.view(torch.uint8))),
        ("9", changing("scale", lambda s: s.view(torch.uint8)[1:].view(s.dtype))),
        ("10", changing("scale", lambda s: s.to("meta"))),
    ],
    "back_fmt": [
        ("1", changing("x", sparse)),
        ("2", setting(dim=7)),
        ("3", setting(elem_format="fp5")),
        ("4", setting(dtype=torch.uint8)),
        ("5", setting(swizzle=9)),
        ("6", setting(block_size=0)),
        ("7", setting(swizzle=1, dim=0)),
        ("8a", changing("x", lambda x: x.view(torch.uint8))),
        ("8b", changing("scale", lambda s: s.view(torch.uint8))),
        ("9", changing("scale", lambda s: s.view(torch.uint8)[1:].view(s.dtype))),
        ("10", changing("scale", lambda s: s.to("meta"))),
    ],
}
MAKERS = {"base": base, "fmt": fmt, "back": back, "back_fmt": back_fmt}


@pytest.mark.parametrize("maker", FAULTS)
def test_the_first_fault_wins(maker: str) -> None:
    """A call with two faults gets the error of the earlier row, whatever the later one."""
    for (name, first), (other_name, second) in combinations(FAULTS[maker], 2):
        with case(name, other_name):
            check_the_first_fault_wins(maker, first, second)


def check_the_first_fault_wins(maker: str, first: Change, second: Change) -> None:
    alone = error_of(SAME["eager"], faulty(maker, first))
    call = faulty(maker, second, first)  # the first may overwrite an argument of the second
    names = ["eager", "emulated", "front_door"]
    if call.args[-1] == 9:  # the front door parses the mode before it calls: see test_alias.py
        names.remove("front_door")
    for name in names:
        both = error_of(SAME[name], call)
        assert type(both) is type(alone)
        assert str(both) == str(alone)


def faulty(maker: str, *changes: Change) -> Sample:
    size = 64
    arguments: dict[str, Any] = {"x": zeros(size, size)}
    if maker.startswith("back"):
        arguments = {"x": raw(size, size, dtype=E4M3), "scale": raw(size, 2)}
    for change in changes:
        change(arguments)
    return MAKERS[maker](**arguments)


# --- wrong kinds ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [(-1, 32.0, E4M3), (-1, "32", E4M3), (0.5, 32, E4M3), (-1, 32, E4M3, 0.0), (-1, 32, None)],
    ids=str,
)
def test_wrong_kinds_are_the_dispatchers(arguments: tuple[Any, ...]) -> None:
    for overload in (QUANTIZE, QUANTIZE.default):
        with pytest.raises(RuntimeError, match=r"Expected a value of type|failed to match"):
            overload(zeros(4, 64), *arguments)
    with pytest.raises(RuntimeError, match=r"missing value|failed to match"):
        QUANTIZE(zeros(4, 64), -1)
