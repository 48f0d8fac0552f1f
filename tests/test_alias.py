"""The names in ``torch`` as the proposal spells them, and the argument forms of the front doors."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config
from cases import PAYLOAD_DTYPES, SCALAR_TYPES
from sample_calls import DEQUANTIZE, QUANTIZE, assert_same, bytes_of
from torch import Tensor

import aten_mx
from aten_mx import ScaleCalculationMode, SwizzleType
from aten_mx.scaling import unknown_mode_message

NAMES = ("quantize_mx", "dequantize_mx")
OWNERS: tuple[Any, ...] = (torch, torch.Tensor)
X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


def present() -> list[bool]:
    return [hasattr(owner, name) for owner in OWNERS for name in NAMES]


@pytest.fixture
def alias() -> Iterator[None]:
    aten_mx.install_torch_alias()
    yield
    aten_mx.remove_torch_alias()


# --- install and remove ---------------------------------------------------------------------------


def test_importing_installs_nothing() -> None:
    assert present() == [False] * 4


def test_install_and_remove_are_idempotent() -> None:
    for _ in range(2):
        for _ in range(2):
            aten_mx.install_torch_alias()
            assert present() == [True] * 4
        for owner in OWNERS:
            assert owner.quantize_mx is aten_mx.quantize_mx
            assert owner.dequantize_mx is aten_mx.dequantize_mx
        for _ in range(2):
            aten_mx.remove_torch_alias()
            assert present() == [False] * 4


@pytest.mark.usefixtures("alias")
def test_functions_and_methods_are_the_front_doors() -> None:
    output, scale = aten_mx.quantize_mx(X, -1, 32, "fp4_e2m1", "rceil", swizzle_type=1)
    expected = aten_mx.dequantize_mx(output, scale, elem_format="fp4_e2m1", swizzle_type=1)
    for quantize in (torch.quantize_mx, torch.Tensor.quantize_mx):  # type: ignore[attr-defined]
        result = quantize(X, -1, 32, "fp4_e2m1", "rceil", swizzle_type=1)
        assert_same(result, (output, scale))
    assert_same(
        X.quantize_mx(dtype="fp4_e2m1", scale_calculation_mode=3, swizzle_type=1), (output, scale)
    )  # type: ignore[attr-defined]
    back = output.dequantize_mx(scale, elem_format="fp4_e2m1", swizzle_type=1)  # type: ignore[attr-defined]
    assert_same(back, expected)
    back = torch.dequantize_mx(output, scale, elem_format="fp4_e2m1", swizzle_type=1)  # type: ignore[attr-defined]
    assert_same(back, expected)


@pytest.mark.parametrize("owner", OWNERS, ids=["torch", "Tensor"])
@pytest.mark.parametrize("name", NAMES)
def test_refuses_to_replace(owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PyTorch that has the op one day keeps its own, and nothing is half installed."""

    def own(*args: Any) -> None:
        """What PyTorch would have."""

    monkeypatch.setattr(owner, name, own, raising=False)
    before = present()
    label = "torch" if owner is torch else r"torch\.Tensor"
    with pytest.raises(RuntimeError, match=rf"^{label}\.{name} already exists \(.*aten_mx\.{name}"):
        aten_mx.install_torch_alias()
    assert present() == before
    aten_mx.remove_torch_alias()
    assert present() == before
    assert getattr(owner, name) is own


def test_partially_present() -> None:
    """Ours in some places only (another copy removed some): installing completes, removing ends."""
    aten_mx.install_torch_alias()
    del torch.quantize_mx  # type: ignore[attr-defined]
    del torch.Tensor.dequantize_mx  # type: ignore[attr-defined]
    aten_mx.install_torch_alias()
    assert present() == [True] * 4
    del torch.Tensor.quantize_mx  # type: ignore[attr-defined]
    aten_mx.remove_torch_alias()
    assert present() == [False] * 4


def test_refuses_when_partially_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Someone replaced one of ours: it stays, as do the others, and only ours are removed."""
    aten_mx.install_torch_alias()
    monkeypatch.setattr(torch.Tensor, "quantize_mx", print)
    with pytest.raises(RuntimeError, match=r"torch\.Tensor\.quantize_mx already exists"):
        aten_mx.install_torch_alias()
    assert present() == [True] * 4
    aten_mx.remove_torch_alias()
    assert present() == [False, False, True, False]


# --- Dynamo ---------------------------------------------------------------------------------------


def by_function(x: Tensor) -> Any:
    output, scale = torch.quantize_mx(x, -1, 32, torch.float8_e4m3fn, "rceil")  # type: ignore[attr-defined]
    return output, scale, torch.dequantize_mx(output, scale)  # type: ignore[attr-defined]


def by_method(x: Tensor) -> Any:
    output, scale = x.quantize_mx(-1, 32, "fp6_e2m3", ScaleCalculationMode.EVEN)  # type: ignore[attr-defined]
    return output, scale, output.dequantize_mx(scale, elem_format="fp6_e2m3")  # type: ignore[attr-defined]


def swizzled(x: Tensor) -> Any:
    return torch.quantize_mx(  # type: ignore[attr-defined]
        x, dtype=torch.float4_e2m1fn_x2, swizzle_type=SwizzleType.SWIZZLE_32_4_4
    )


@pytest.mark.usefixtures("alias")
@pytest.mark.filterwarnings(
    "ignore:dynamo_pgo force disabled",
    "ignore:`torch.jit.script_method` is deprecated",  # Inductor's own imports (2.13)
)
@pytest.mark.parametrize(
    ("function", "backend"),
    # A backend sees the same graph, whatever the call was; so one call is enough for Inductor.
    [
        (by_function, "aot_eager"),
        (by_method, "aot_eager"),
        (swizzled, "aot_eager"),
        pytest.param(swizzled, "inductor", marks=pytest.mark.slow),
    ],
)
def test_dynamo_traces_the_alias(function: Callable[[Tensor], Any], backend: str) -> None:
    torch._dynamo.reset()
    # The cache on disk may hold a graph of another state of the sources.
    with torch._inductor.config.patch(force_disable_caches=True):
        compiled = torch.compile(function, fullgraph=True, backend=backend)
        assert_same(compiled(X), function(X))


# --- argument forms of the front doors ------------------------------------------------------------


# As TorchAO's enum: strings as values. mypy wants literals.
PeerMode = enum.Enum(  # type: ignore[misc]
    "PeerMode", {mode.name: mode.name.lower() for mode in ScaleCalculationMode}
)


class PeerSwizzle(enum.Enum):
    """``torch.nn.functional.SwizzleType`` is a plain enum in some releases."""

    NO_SWIZZLE = 0
    SWIZZLE_32_4_4 = 1


@pytest.mark.parametrize("mode", ScaleCalculationMode, ids=lambda mode: mode.name)
def test_mode_forms(mode: ScaleCalculationMode) -> None:
    expected = QUANTIZE.default(X, -1, 32, torch.float8_e5m2, int(mode))
    for form in (mode, int(mode), mode.name.lower(), PeerMode[mode.name]):
        result = aten_mx.quantize_mx(X, dtype=torch.float8_e5m2, scale_calculation_mode=form)
        assert_same(result, expected)


def test_defaults() -> None:
    expected = QUANTIZE.default(X, 1, 32, torch.float8_e4m3fn, 0)
    assert_same(aten_mx.quantize_mx(X), expected)
    back = DEQUANTIZE.default(*expected, 1, 32, torch.float32)
    assert_same(aten_mx.dequantize_mx(*expected), back)


@pytest.mark.parametrize("fmt", PAYLOAD_DTYPES)
@pytest.mark.parametrize("swizzle", [0, 1])
def test_dtype_forms(fmt: str, swizzle: int) -> None:
    """A string gives raw bytes, a dtype gives that dtype, also when the scale is swizzled."""
    expected = QUANTIZE.format(X, -1, 32, fmt, 2, swizzle_type=swizzle)
    values = DEQUANTIZE.format(*expected, -1, 32, fmt, torch.bfloat16, swizzle_type=swizzle)
    for form in (swizzle, SwizzleType(swizzle), PeerSwizzle(swizzle)):
        result = aten_mx.quantize_mx(X, -1, 32, fmt, "even", swizzle_type=form)
        assert_same(result, expected)
        back = aten_mx.dequantize_mx(
            *result, dtype=torch.bfloat16, elem_format=fmt, swizzle_type=form
        )
        assert_same(back, values)
        if fmt not in SCALAR_TYPES:
            continue
        dtype = SCALAR_TYPES[fmt]
        output, scale = aten_mx.quantize_mx(X, -1, 32, dtype, "even", swizzle_type=form)
        assert output.dtype is dtype
        assert torch.equal(bytes_of(output), bytes_of(expected[0]))
        assert output.stride() == expected[0].stride()
        assert_same(scale, expected[1])
        back = aten_mx.dequantize_mx(output, scale, dtype=torch.bfloat16, swizzle_type=form)
        assert_same(back, values)


@pytest.mark.parametrize("mode", ["Floor", "no_mode", "", 99, -1, None, 1.5], ids=repr)
def test_unknown_mode(mode: object) -> None:
    with pytest.raises(ValueError, match=r"scale_calculation_mode must be one of .*, got ") as info:
        aten_mx.quantize_mx(X, scale_calculation_mode=mode)
    assert str(info.value) == f"quantize_mx: {unknown_mode_message(mode)}"


def test_unknown_mode_is_the_ops_error() -> None:
    """The same text as from the op, and after the rows of the table that stand above it."""
    with pytest.raises(ValueError, match=r"^quantize_mx: scale_calculation_mode must be"):
        aten_mx.quantize_mx(X, scale_calculation_mode=9)
    with pytest.raises(TypeError, match=r"got torch\.float64"):
        aten_mx.quantize_mx(X.double(), scale_calculation_mode=9)


@pytest.mark.parametrize("dtype", ["fp8_e4m3", torch.float8_e4m3fn, torch.float4_e2m1fn_x2])
@pytest.mark.parametrize("swizzle", [2, -1])
def test_unknown_swizzle(dtype: torch.dtype | str, swizzle: int) -> None:
    with pytest.raises(ValueError, match=rf"^quantize_mx: swizzle_type must be .*, got {swizzle}$"):
        aten_mx.quantize_mx(X, dtype=dtype, swizzle_type=swizzle)
    output, scale = aten_mx.quantize_mx(X, dtype=dtype)
    fmt = "fp8_e4m3" if isinstance(dtype, str) else None
    with pytest.raises(ValueError, match=rf"^dequantize_mx: swizzle_type must be .* {swizzle}$"):
        aten_mx.dequantize_mx(output, scale, elem_format=fmt, swizzle_type=swizzle)


def test_unknown_dtypes() -> None:
    """Also with a swizzle, where the front door itself has to find the format."""
    for swizzle in (0, 1):
        with pytest.raises(TypeError, match=r"^quantize_mx: dtype must be .*, got torch\.int16$"):
            aten_mx.quantize_mx(X, dtype=torch.int16, swizzle_type=swizzle)
        with pytest.raises(ValueError, match=r"^quantize_mx: elem_format must be .*, got fp5$"):
            aten_mx.quantize_mx(X, dtype="fp5", swizzle_type=swizzle)
        with pytest.raises(
            TypeError, match=r"^dequantize_mx: self must be .*, got torch\.float32$"
        ):
            aten_mx.dequantize_mx(X, X, swizzle_type=swizzle)
