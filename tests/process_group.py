"""Checks that run in every process of a group; files of checks use this, and pytest starts them.

    python sharding_checks.py WORLD_SIZE CHECK...

One process imports everything and forks the group before any computation: importing PyTorch in each
would take most of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch._dynamo  # imported here once and not by every process
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

Check = Callable[[DeviceMesh], None]


def values(*shape: int) -> Tensor:
    """The same in every process; block maxima over many binades, a NaN, an Inf and zeros."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    x = torch.randn(shape, generator=generator)
    x = x * torch.randint(-20, 20, shape, generator=generator).exp2()
    flat = x.view(-1)
    flat[1::97], flat[3::101], flat[5::7] = torch.nan, torch.inf, 0.0
    return x


def local(full: Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> Tensor:
    """This process's part of ``full``'s bits, by DTensor's own cut and without communication."""
    return distribute_tensor(bits(full), mesh, placements, src_data_rank=None).to_local()


def bits(tensor: Tensor) -> Tensor:
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def assert_sharded(got: Tensor, want: Tensor, placements: Sequence[Placement]) -> None:
    """``got`` is ``want``, byte for byte, and laid out over the mesh by ``placements``."""
    assert isinstance(got, DTensor)
    assert list(got.placements) == list(placements), got.placements
    assert not got.requires_grad
    got_meta, want_meta = ((t.dtype, t.shape, t.stride()) for t in (got, want))
    assert got_meta == want_meta, (got_meta, want_meta)
    part = local(want, got.device_mesh, placements)
    assert torch.equal(bits(got.to_local()), part), "bytes differ"


def _run(rank: int, world_size: int, checks: Sequence[Check], store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    for check in checks:
        check(init_device_mesh("cpu", (world_size,)))
    dist.destroy_process_group()


def main(*checks: Check) -> None:
    """Run the checks that the command line names in as many processes as it says."""
    world_size, names = int(sys.argv[1]), sys.argv[2:]
    by_name = {check.__name__: check for check in checks}
    with TemporaryDirectory() as folder:
        arguments = (world_size, [by_name[name] for name in names], str(Path(folder) / "store"))
        mp.start_processes(_run, arguments, nprocs=world_size, start_method="fork")
    print("passed:", *names)
