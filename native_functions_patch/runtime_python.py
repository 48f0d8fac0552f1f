"""Runs the patch's Python files: OpInfo, overrides, documentation, DTensor and Inductor.

``torch`` is the wheel's with those files in it (``overlay``), and ``torch.quantize_mx`` stands for
the binding that core's build would generate.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import inspect
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from native_functions_patch.codegen import NAMES
from native_functions_patch.samples import E4M3, FP4, same


def bind() -> None:
    """``torch.quantize_mx``, the ``Tensor`` method, and the same for ``dequantize_mx``."""
    for name in NAMES:
        function = _binding(getattr(torch.ops.aten, name), name)
        setattr(torch, name, function)
        setattr(torch.Tensor, name, function)


def _binding(packet: Any, name: str) -> Any:
    # A function, so that it binds as a method.
    def binding(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return packet(self, *args, **kwargs)

    return functools.update_wrapper(binding, packet, assigned=(), updated=()) or name


def check_opinfo() -> str:
    """The OpInfo entries' samples run, and give the package's bytes."""
    from torch.testing._internal.common_methods_invocations import op_db

    entries = [entry for entry in op_db if entry.name in NAMES]
    assert len(entries) == 4, f"{len(entries)} OpInfo entries"
    count = 0
    for entry in entries:
        for dtype in entry.dtypes:
            samples = list(entry.sample_inputs("cpu", dtype))
            assert samples, f"{entry.formatted_name} has no samples for {dtype}"
            for sample in samples:
                result = entry(sample.input, *sample.args, **sample.kwargs)
                package = getattr(torch.ops.aten_mx, entry.name)
                expected = package(sample.input, *sample.args, **sample.kwargs)
                assert same(result, expected), f"{entry.formatted_name} {sample}"
                count += 1
    return f"{len(entries)} entries, {count} samples"


def check_overrides() -> str:
    """``__torch_function__``'s list has both functions, with the schemas' arguments."""
    from torch.overrides import get_testing_overrides

    table = get_testing_overrides()
    for name in NAMES:
        dummy = table[getattr(torch, name)]
        arguments = getattr(torch.ops.aten, name).default._schema.arguments
        expected = ["input", *(argument.name for argument in arguments[1:])]
        assert list(inspect.signature(dummy).parameters) == expected
        assert getattr(torch.Tensor, name) in table
    return "2 functions and methods"


def check_docs(tree: Path) -> str:
    """The examples of the documentation print what they say."""
    module = ast.parse((tree / "torch/_torch_docs.py").read_text())
    texts = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            target, text = node.args
            if isinstance(target, ast.Attribute) and target.attr in NAMES:
                texts[target.attr] = ast.literal_eval(text)
    assert sorted(texts) == sorted(NAMES)
    runner = doctest.DocTestRunner(verbose=False)
    output = io.StringIO()
    for name, text in texts.items():
        test = doctest.DocTestParser().get_doctest(text, {"torch": torch}, name, None, None)
        runner.run(test, out=output.write)
    assert not runner.failures, output.getvalue()
    return f"{runner.tries} examples"


def check_dtensor() -> str:
    """Shards of every dimension but the blocked one stay shards, of values and scales alike."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        x = torch.randn(8, 64)
        count = 0
        for dim, placement in ((-1, Shard(0)), (0, Shard(1)), (-1, Replicate())):
            block = 4 if dim == 0 else 32
            sharded = distribute_tensor(x, mesh, [placement], src_data_rank=None)
            result = torch.quantize_mx(sharded, dim, block, E4M3)
            expected = torch.quantize_mx(sharded.to_local(), dim, block, E4M3)
            back = torch.dequantize_mx(*result, dim, block, torch.float32)
            for tensor in (*result, back):
                assert tensor.placements == (placement,), f"{placement} became {tensor.placements}"
            assert same([tensor.to_local() for tensor in result], expected), f"{placement}"
            count += 1
    finally:
        dist.destroy_process_group()
    return f"{count} placements"


def check_inductor(*, has_kernel: bool) -> str:
    """Compiled on the CPU each op is a call of its kernel, or inlined where it has none."""
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(4, 64)
    for dtype in (E4M3, FP4):

        def round_trip(x: Tensor, dtype: torch.dtype = dtype) -> tuple[Tensor, Tensor, Tensor]:
            output, scale = torch.ops.aten.quantize_mx(x * 2, -1, 32, dtype)
            return output, scale, torch.ops.aten.dequantize_mx(output, scale, -1, 32, x.dtype)

        with (
            torch._inductor.config.patch(force_disable_caches=True),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            compiled = torch.compile(round_trip, fullgraph=True)
            result, (code,) = run_and_get_code(compiled, x)
        for name in NAMES:
            is_call = f"torch.ops.aten.{name}.default" in code
            assert is_call is has_kernel, f"{name} is {'a call' if is_call else 'inlined'}"
        assert same(result, round_trip(x)), f"{dtype}"
    return "one call each" if has_kernel else "inlined"


class _RoundTrip(torch.nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, scale = torch.ops.aten.quantize_mx(x, -1, 32, E4M3, 3)
        values = torch.ops.aten.dequantize_mx(output, scale, -1, 32, torch.float32)
        return output, scale, values


def check_aot_inductor(tree: Path) -> str:
    """A program compiled ahead of time, loaded anew, gives the same bytes: no C shim is needed."""
    x = torch.randn(4, 64)
    program = torch.export.export(_RoundTrip(), (x,))
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tree / "generated" / "round_trip.pt2")
    )
    assert same(torch._inductor.aoti_load_package(path)(x), _RoundTrip()(x))
    return "a round trip"
