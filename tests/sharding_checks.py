"""How DTensor shards the ops; ``test_dtensor.py`` runs this file in groups of processes."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from process_group import assert_sharded, main, values
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)
from torch.distributed.tensor.placement_types import _StridedShard

import aten_mx
from aten_mx import emulated
from aten_mx.formats import FORMATS

E4M3 = torch.float8_e4m3fn
REPLICATED = [Replicate()]


def round_trip(
    x: DTensor, full: Tensor, dim: int, block_size: int, element: Any, *, swizzle_type: int = 0,
    keeps: Sequence[Placement] | None = None,
) -> None:  # fmt: skip
    """Quantized and back, ``x`` gives what ``full`` gives; it ``keeps`` its placements."""
    keeps = x.placements if keeps is None else keeps
    outputs = aten_mx.quantize_mx(x, dim, block_size, element, swizzle_type=swizzle_type)
    expected = aten_mx.quantize_mx(full, dim, block_size, element, swizzle_type=swizzle_type)
    for got, want in zip(outputs, expected, strict=True):
        assert_sharded(got, want, keeps)
    name = element if isinstance(element, str) else None
    for dtype in (torch.float32, torch.bfloat16):
        arguments = {"elem_format": name, "swizzle_type": swizzle_type}
        got = aten_mx.dequantize_mx(*outputs, dim, block_size, dtype, **arguments)
        want = aten_mx.dequantize_mx(*expected, dim, block_size, dtype, **arguments)
        assert_sharded(got, want, keeps)


def placements(mesh: DeviceMesh) -> None:
    """Which placements stay, for each dim, format, mode and swizzle, and that the bytes do."""
    n = mesh.size()

    def check(shape: Sequence[int], at: int, *call: Any, stays: bool = True, **kwargs: Any) -> None:
        full = values(*shape)
        x = distribute_tensor(full, mesh, [Shard(at)], src_data_rank=None)
        keeps = [Shard(at)] if stays else REPLICATED
        round_trip(x, full, *call, keeps=keeps, **kwargs)

    for element in (*FORMATS, torch.float4_e2m1fn_x2):
        check((4 * n, 64), 0, -1, 32, element)
        check((4, 32 * n), 1, -1, 32, element)
    # The other dimension: uneven shards, an empty one where there are fewer rows than processes.
    for rows in (1, n - 1, 2 * n - 1):
        check((rows, 64), 0, -1, 32, E4M3)
        check((64, rows), 1, 0, 32, "fp4_e2m1")
        check((2, rows, 64), 1, 2, 32, "fp6_e2m3")
    # The blocked dimension: whole blocks, also uneven ones; parts of blocks are gathered.
    check((64 * n, 3), 0, 0, 32, E4M3)
    check((2, 2 * (n - 1)), 1, 1, 2, "fp4_e2m1", stays=n == 4)  # 2, 2, 2 and nothing of 6
    check((3, 32 * (n + 1)), 1, 1, 32, E4M3, stays=False)
    check((16 * n, 3), 0, 0, 32, "fp4_e2m1", stays=False)
    check((2, 5 * n), 1, 1, 1, "int8")
    # Nothing to quantize.
    check((0, 64), 0, 1, 32, E4M3)
    check((4, 0), 1, 1, 32, "fp4_e2m1")

    swizzled: dict[str, Any] = {"swizzle_type": 1}
    check((n + 1, 5, 64), 0, -1, 32, E4M3, **swizzled)
    check((128 * n, 64), 0, -1, 32, "fp4_e2m1", **swizzled)
    check((128 * n - 1, 96), 0, -1, 32, torch.float4_e2m1fn_x2, **swizzled)
    check((64 * n, 64), 0, -1, 32, "fp8_e4m3", stays=False, **swizzled)
    check((64 * n, 64), 0, -1, 32, "fp8_e4m3")
    check((128, 128 * n), 1, -1, 32, E4M3, stays=False, **swizzled)

    full = values(4, 64)
    for mode in aten_mx.ScaleCalculationMode:
        x = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
        outputs = aten_mx.quantize_mx(x, scale_calculation_mode=mode)
        expected = aten_mx.quantize_mx(full, scale_calculation_mode=mode)
        for got, want in zip(outputs, expected, strict=True):
            assert_sharded(got, want, [Shard(0)])

    # A pending sum is summed first: powers of two, so that the order does not matter.
    full = torch.randint(-8, 8, (4, 64)).exp2()
    x = DTensor.from_local(full, mesh, [Partial()])
    round_trip(x, full * n, -1, 32, E4M3, keeps=REPLICATED)
    # The negative bit and strides of a shard.
    full = values(64, 6).t()
    x = distribute_tensor(full, mesh, [Shard(1)], src_data_rank=None)
    round_trip(x, full, 1, 32 // n, E4M3)


def dequantize(mesh: DeviceMesh) -> None:
    """Payload and scale that come in different placements, or in ones that fit no whole blocks."""
    n = mesh.size()
    full = values(4, 64)
    output, scale = aten_mx.quantize_mx(full, dtype="fp6_e3m2")
    want = aten_mx.dequantize_mx(output, scale, elem_format="fp6_e3m2")
    for payload_at, scale_at in ((Shard(0), Replicate()), (Shard(1), Replicate())):
        payload = distribute_tensor(output, mesh, [payload_at], src_data_rank=None)
        placed = distribute_tensor(scale, mesh, [scale_at], src_data_rank=None)
        got = aten_mx.dequantize_mx(payload, placed, elem_format="fp6_e3m2")
        whole = payload_at.dim == 0 or n == 2
        assert_sharded(got, want, [payload_at] if whole else REPLICATED)

    # Ten values on four processes are cut 3, 3, 3, 1, their five bytes 2, 2, 1, 0.
    output, scale = aten_mx.quantize_mx(values(3, 10), block_size=2, dtype="fp4_e2m1")
    want = aten_mx.dequantize_mx(output, scale, block_size=2, elem_format="fp4_e2m1")
    payload = distribute_tensor(output, mesh, [Shard(1)], src_data_rank=None)
    placed = distribute_tensor(scale, mesh, REPLICATED, src_data_rank=None)
    got = aten_mx.dequantize_mx(payload, placed, block_size=2, elem_format="fp4_e2m1")
    assert_sharded(got, want, REPLICATED)


def two_dimensions(mesh: DeviceMesh) -> None:
    """A mesh of 2 x 2 processes; FSDP over tensor parallelism cuts rows in strides."""
    mesh = init_device_mesh("cpu", (2, 2))
    strided = _StridedShard(0, split_factor=2)
    for shape, placements, dim, keeps in (
        ((5, 64), [Shard(0), Shard(1)], 1, [Shard(0), Shard(1)]),
        ((7, 64), [Shard(0), Shard(0)], 1, [Shard(0), Shard(0)]),
        ((8, 64), [strided, Shard(0)], 1, [strided, Shard(0)]),
        ((128, 3), [Shard(0), Shard(0)], 0, [Shard(0), Shard(0)]),
        ((128, 3), [strided, Shard(0)], 0, [strided, Shard(0)]),
        # The first cut leaves whole blocks, the second does not.
        ((192, 3), [Shard(0), Shard(0)], 0, REPLICATED * 2),
        ((64, 8), [strided, Shard(0)], 0, REPLICATED * 2),
        ((64, 8), [strided, Replicate()], 0, REPLICATED * 2),  # two half blocks each
        ((160, 4), [Shard(0), Shard(1)], 0, [Replicate(), Shard(1)]),
    ):
        full = values(*shape)
        x = distribute_tensor(full, mesh, placements, src_data_rank=None)
        round_trip(x, full, dim, 32, "fp4_e2m1", keeps=keeps)


def checkpoint(mesh: DeviceMesh) -> None:
    """Payload and scale of a sharded weight, saved by all and loaded into other placements."""
    full = values(64, 128)
    for element in (E4M3, "fp4_e2m1", torch.float4_e2m1fn_x2):
        expected = aten_mx.quantize_mx(full, dtype=element)
        x = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
        names = ("payload", "scale")
        folder = [tempfile.mkdtemp() if mesh.get_rank() == 0 else ""]
        dist.broadcast_object_list(folder)
        dcp.save(
            dict(zip(names, aten_mx.quantize_mx(x, dtype=element), strict=True)),
            checkpoint_id=folder[0],
        )
        loaded = {
            name: distribute_tensor(torch.empty_like(want), mesh, [Shard(1)], src_data_rank=None)
            for name, want in zip(names, expected, strict=True)
        }
        dcp.load(loaded, checkpoint_id=folder[0])
        for name, want in zip(names, expected, strict=True):
            assert_sharded(loaded[name], want, [Shard(1)])
        dist.barrier()
        if mesh.get_rank() == 0:
            shutil.rmtree(folder[0])


def errors(mesh: DeviceMesh) -> None:
    """DTensor wraps what the validation says; a plain tensor beside a sharded one is refused."""
    x = distribute_tensor(values(4, 64), mesh, [Shard(0)], src_data_rank=None)
    text = "quantize_mx: size 64 of dim 1 must be a multiple of block_size 48, got shape [4, 64]"
    with pytest.raises(RuntimeError, match=re.escape(text)) as error:
        aten_mx.quantize_mx(x, block_size=48)
    assert isinstance(error.value.__cause__, ValueError)
    output, scale = aten_mx.quantize_mx(x)
    with pytest.raises(RuntimeError, match="mixed torch"):
        aten_mx.dequantize_mx(output, scale.to_local())


def kernel(mesh: DeviceMesh) -> None:
    """A device's kernel is called once in each process, with that process's shard."""
    n = mesh.size()
    seen: list[tuple[int, ...]] = []

    def kernel(self: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        seen.append(tuple(self.shape))
        return emulated.quantize_mx(self, *args, **kwargs)

    handle = aten_mx.register_kernel("quantize_mx", "CPU", kernel, override=True)
    full = values(2 * n, 64)
    x = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
    outputs = aten_mx.quantize_mx(x)
    assert seen == [(2, 64)], seen
    handle.unregister()
    for got, want in zip(outputs, aten_mx.quantize_mx(full), strict=True):
        assert_sharded(got, want, [Shard(0)])


def compiled(mesh: DeviceMesh) -> None:
    """One graph, in which each process quantizes its shard; a second one has dynamic sizes."""

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, scale = aten_mx.quantize_mx(x * 2)
        return output, scale, aten_mx.dequantize_mx(output, scale)

    n = mesh.size()
    graph = torch.compile(function, backend="aot_eager", fullgraph=True)
    # Each process's shards differ in size: PyTorch 2.13 runs a graph that it compiled for a shard
    # of the same size and a whole of another, and returns the other whole's shape, for every op.
    for rows in (4 * n, 6 * n - 1):
        full = values(rows, 64)
        x = distribute_tensor(full, mesh, [Shard(0)], src_data_rank=None)
        for got, want in zip(graph(x), function(full), strict=True):
            assert_sharded(got, want, [Shard(0)])


if __name__ == "__main__":
    main(placements, dequantize, two_dimensions, checkpoint, errors, kernel, compiled)
