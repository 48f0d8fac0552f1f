"""MX linears in parallel; ``test_dtensor.py`` runs this file in groups of processes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from mx_linear import Log, MXLinear, product
from process_group import assert_sharded, bits, main, values
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard

import aten_mx


class Model(nn.Sequential):
    """Two MX linears, the same in every process, and what they quantized."""

    def __init__(self, hidden: int, out: int = 64) -> None:
        torch.manual_seed(hidden)
        super().__init__(MXLinear(64, hidden), nn.ReLU(), MXLinear(hidden, out, "fp4_e2m1"))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).clone()  # FSDP warns of a module that returns a view

    def log(self) -> Log:
        return self[0].log + self[2].log


def train(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Output and input gradient of one step, on the same data in every process."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 64, generator=generator, requires_grad=True)
    y = model(x)
    y.backward(torch.randn(y.shape, generator=generator))
    assert x.grad is not None
    return y, x.grad


def assert_quantized_alike(model: Model, single: Model) -> None:
    """Each operand's bytes are a single process's, whether it is sharded or not."""
    assert len(model.log()) == len(single.log()) > 0
    for pair, wanted in zip(model.log(), single.log(), strict=True):
        for got, want in zip(pair, wanted, strict=True):
            if isinstance(got, DTensor):
                assert_sharded(got, want, got.placements)
            else:
                assert torch.equal(bits(got), bits(want))


def sharded_dims(log: Log) -> list[str]:
    """Where the payloads are sharded: a dimension's number or "-", one per mesh dimension."""
    return [
        "".join(str(p.dim) if isinstance(p, (Shard, _StridedShard)) else "-" for p in t.placements)
        for t, _ in log
    ]


def tensor_parallel(mesh: DeviceMesh) -> None:
    """Columns, then rows, forward and backward; no operand is gathered to be quantized."""
    n = mesh.size()
    single, model = Model(64 * n), Model(64 * n)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    y, x_grad = train(model)
    expected, expected_x_grad = train(single)
    assert_quantized_alike(model, single)
    # x, weight; gradient, weight transposed; gradient transposed, x transposed.
    assert sharded_dims(model[0].log) == ["-", "0", "1", "1", "0", "-"]
    assert sharded_dims(model[2].log) == ["1", "1", "-", "0", "-", "0"]
    # Exact, as a column is a process's own; the sums over processes round otherwise.
    for layer, by in ((0, Shard(0)), (2, Shard(1))):
        assert_sharded(model[layer].weight.grad, single[layer].weight.grad, [by])
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(x_grad, expected_x_grad)


def colwise_and_rowwise(mesh: DeviceMesh) -> None:
    """Outputs by columns are a single process's; those by rows, its products of the shards."""
    n = mesh.size()
    x = values(7, 64).nan_to_num(1.0, 1.0)
    for out in (96, 5, n - 1):  # even shards, uneven ones, and one process without a column
        layer = MXLinear(64, out)
        want = product(x, layer.weight.detach(), "fp8_e4m3", [])
        parallelize_module(layer, mesh, ColwiseParallel(output_layouts=Replicate()))
        with torch.no_grad():
            assert torch.equal(bits(layer(x)), bits(want))

    layer = MXLinear(32 * n, 8)
    torch.manual_seed(1)
    x, weight = torch.randn(7, 32 * n), layer.weight.detach()
    products = [
        product(part, columns, "fp8_e4m3", [])
        for part, columns in zip(x.chunk(n, 1), weight.chunk(n, 1), strict=True)
    ]
    parallelize_module(layer, mesh, RowwiseParallel(output_layouts=Partial()))
    with torch.no_grad():
        partial = layer(distribute_tensor(x, mesh, [Shard(1)], src_data_rank=None))
    gathered = [torch.empty(7, 8) for _ in range(n)]
    dist.all_gather(gathered, partial)
    # In the order of the ranks. DTensor's own sum adds in gloo's order, which is another for four.
    assert torch.equal(sum(gathered), sum(products))
    for got, want in zip(gathered, products, strict=True):
        assert torch.equal(bits(got), bits(want))


def fsdp(mesh: DeviceMesh) -> None:
    """Each process quantizes the gathered weight, or its own rows of it, also no rows at all."""
    n = mesh.size()
    single, model = Model(64), Model(64)
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    y, _ = train(model)
    expected, _ = train(single)
    assert_quantized_alike(model, single)
    assert torch.equal(bits(y), bits(expected))
    for layer in (0, 2):
        torch.testing.assert_close(
            model[layer].weight.grad.full_tensor(), single[layer].weight.grad
        )

    for out in (5, n - 1):
        single, model = Model(64, out), Model(64, out)
        fully_shard(model, mesh=mesh)
        x = values(7, 64).nan_to_num(1.0, 1.0)
        with torch.no_grad():
            assert torch.equal(bits(model(x)), bits(single(x)))
        assert_quantized_alike(model, single)
        model.reshard()
        weight = model[2].weight
        for got, want in zip(
            aten_mx.quantize_mx(weight), aten_mx.quantize_mx(single[2].weight), strict=True
        ):
            assert_sharded(got, want, weight.placements)


def fsdp_and_tensor_parallel(mesh: DeviceMesh) -> None:
    """On a mesh of 2 x 2 processes; the rows of a weight are cut twice."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    single, model = Model(128), Model(128)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    train(model)
    train(single)
    assert_quantized_alike(model, single)
    weight = model[0].weight
    assert isinstance(weight.placements[0], _StridedShard)
    for dim in (0, 1):
        pair = aten_mx.quantize_mx(weight, dim)
        for got, want in zip(pair, aten_mx.quantize_mx(single[0].weight, dim), strict=True):
            assert_sharded(got, want, weight.placements)


if __name__ == "__main__":
    main(tensor_parallel, colwise_and_rowwise, fsdp, fsdp_and_tensor_parallel)
