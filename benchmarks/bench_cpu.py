"""The native CPU kernel against ``copy_``, the emulated kernel and the peers, in one run.

All calls of a row are interleaved, and what counts is the ratio of minima to ``copy_`` of the same
input. The first block is the table of limits, ``--check`` exits with 1 if one is broken; the second
compares the peers; ``--sizes`` adds more shapes, ``--plot`` draws them.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import os
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}

import torch
from common import (
    BLOCK_SIZE,
    BUSY,
    DEQUANTIZE,
    FLOOR,
    QUANTIZE,
    RCEIL,
    Call,
    compiled,
    cpu_model,
    cpu_seconds_of_others,
    interleaved,
    moved_bytes,
    need_native_kernel,
    run,
    torchao_call,
)
from torch import Tensor

import aten_mx
from aten_mx import emulated
from aten_mx.commands.files import check_writable, write_json
from aten_mx.formats import FORMATS, ElementFormat

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# In copy_ times of the same input: (all formats, INT8).
QUANTIZE_LIMIT = {"float32": (1.0, 1.3), "bfloat16": (2.0, 2.6)}
DIM0_LIMIT = 1.8  # in times of dim=-1
DEQUANTIZE_LIMIT = 1.0  # in clone() times of the float32 output
SMALL_LIMIT_US, SMALL_LIMIT_RATIO = 10.0, 1 / 8  # (1, 4096) float32 to FP8, TorchAO's eager
SIZES = ((1, 4096), (64, 4096), (1024, 1024), (2048, 2048), (4096, 4096), (8192, 8192))


def memory_bound(x: Tensor, fmt: ElementFormat) -> float:
    """Bytes that must be read and written, in those of ``copy_``."""
    return moved_bytes(x, fmt) / (2 * x.nbytes)


def measure(calls: dict[str, Call], repeats: int) -> dict[str, float]:
    """Minima in milliseconds, and the CPUs that others used meanwhile."""
    before = cpu_seconds_of_others() or 0.0
    times = interleaved(calls, repeats)
    wall = 1e-3 * sum(time.median for time in times.values()) * (repeats + 2)
    others = ((cpu_seconds_of_others() or 0.0) - before) / wall
    return {name: time.minimum for name, time in times.items()} | {"others": max(0.0, others)}


def limit_rows(size: int, repeats: int) -> list[dict[str, Any]]:
    """The rows of the table of limits: what, reached, limit, bound."""
    rows = []
    for name, dtype in DTYPES.items():
        x = torch.randn(size, size).to(dtype)
        target = torch.empty_like(x)
        for fmt in FORMATS.values():
            calls: dict[str, Call] = {"copy_": partial(target.copy_, x)}
            for mode, label in ((FLOOR, "floor"), (RCEIL, "rceil")):
                calls[label] = partial(QUANTIZE, x, -1, BLOCK_SIZE, fmt.name, mode)
                calls[f"{label} dim=0"] = partial(QUANTIZE, x, 0, BLOCK_SIZE, fmt.name, mode)
            times = measure(calls, repeats)
            limit = QUANTIZE_LIMIT[name][fmt.twos_complement]
            for label in ("floor", "rceil"):
                what = f"{name} to {fmt.name}, {label}"
                common = {"ms": times[label], "others": times["others"]}
                ratio = times[label] / times["copy_"]
                bound = memory_bound(x, fmt)
                rows.append(common | dict(what=what, ratio=ratio, limit=limit, bound=bound))
                ratio = times[f"{label} dim=0"] / times[label]
                what = f"{what}, dim=0 / dim=-1"
                common["ms"] = times[f"{label} dim=0"]
                rows.append(common | dict(what=what, ratio=ratio, limit=DIM0_LIMIT))
    x = torch.randn(size, size)
    for fmt in FORMATS.values():
        payload, scale = QUANTIZE(x, -1, BLOCK_SIZE, fmt.name)
        back = partial(DEQUANTIZE, payload, scale, -1, BLOCK_SIZE, fmt.name, torch.float32)
        times = measure({"clone": x.clone, "op": back}, repeats)
        limit = None if fmt.bits == 6 or fmt.twos_complement else DEQUANTIZE_LIMIT
        what = f"{fmt.name} to float32 / clone()"
        row = {"ms": times["op"], "others": times["others"], "what": what, "limit": limit}
        rows.append(row | {"ratio": times["op"] / times["clone"], "bound": memory_bound(x, fmt)})
    return rows


def small_rows() -> list[dict[str, Any]]:
    """(1, 4096) float32 to FP8: microseconds, and the ratio to TorchAO's eager."""
    x = torch.randn(1, 4096)
    fmt = FORMATS["fp8_e4m3"]
    peer = torchao_call(fmt, "floor")
    calls: dict[str, Call] = {
        "op": partial(torch.ops.aten_mx.quantize_mx, x, -1, BLOCK_SIZE, fmt.dtype)
    }
    if peer:
        calls["torchao"] = partial(peer, x)
    times = measure(calls, 2000)
    microseconds = 1e3 * times["op"]
    common = {"ms": times["op"], "others": times["others"]}
    what = "(1, 4096) float32 to fp8_e4m3"
    rows = [common | {"what": f"{what}, us", "ratio": microseconds, "limit": SMALL_LIMIT_US}]
    if peer:
        ratio = times["op"] / times["torchao"]
        rows.append(
            common | {"what": f"{what} / TorchAO", "ratio": ratio, "limit": SMALL_LIMIT_RATIO}
        )
    return rows


def emulated_compiled(x: Tensor, fmt: ElementFormat) -> Call | None:
    """The emulated kernel as Inductor compiles it, although the native one is loaded."""
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.decomposition import select_decomp_table

    table = {**select_decomp_table(), **aten_mx.decomposition_table()}
    backend = partial(compile_fx, decompositions=table)
    torch._dynamo.reset()
    call = torch.compile(
        lambda t: QUANTIZE(t, -1, BLOCK_SIZE, fmt.name, RCEIL), backend=backend, fullgraph=True
    )
    try:
        call(x)
    except Exception:  # no row then
        return None
    return lambda: call(x)


def mlx_call(x: Tensor, fmt: ElementFormat) -> Call | None:
    """MLX's quantize, where it has the format; it scales by FLOOR along the last dimension."""
    mode = {"fp8_e4m3": "mxfp8", "fp4_e2m1": "mxfp4"}.get(fmt.name)
    if mode is None or importlib.util.find_spec("mlx") is None:
        return None
    import mlx.core as mx

    array = mx.array(x.float().numpy())
    array = array if x.dtype is torch.float32 else array.astype(mx.bfloat16)
    mx.eval(array)
    return lambda: mx.eval(mx.quantize(array, group_size=32, mode=mode))


def ml_dtypes_call(x: Tensor, fmt: ElementFormat) -> Call | None:
    """A plain cast of the elements, without scales; one thread."""
    name = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp4_e2m1": "float4_e2m1fn"}
    if x.dtype is not torch.float32 or fmt.name not in name:
        return None
    import ml_dtypes

    array, dtype = x.numpy(), getattr(ml_dtypes, name[fmt.name])
    return lambda: array.astype(dtype)


def peer_row(
    x: Tensor, fmt: ElementFormat, repeats: int, *, with_compiled: bool = True
) -> dict[str, Any]:
    """Every kernel and peer that takes the call; the ratio to ``copy_``."""
    torch._dynamo.reset()
    target = torch.empty_like(x)
    floor, rceil = torchao_call(fmt, "floor"), torchao_call(fmt, "rceil")
    candidates: dict[str, Call | None] = {
        "copy_": partial(target.copy_, x),
        "native": partial(QUANTIZE, x, -1, BLOCK_SIZE, fmt.name, FLOOR),
        "emulated": partial(emulated.quantize_mx, x, -1, BLOCK_SIZE, fmt.name, FLOOR),
        "em. compiled": emulated_compiled(x, fmt) if with_compiled else None,
        "TorchAO": partial(floor, x) if floor else None,
        "AO compiled": compiled(rceil, x)[0] if rceil and with_compiled else None,
        "MLX": mlx_call(x, fmt),
        "ml_dtypes": ml_dtypes_call(x, fmt),
    }
    times = measure({name: call for name, call in candidates.items() if call}, repeats)
    return {
        "shape": list(x.shape),
        "dtype": str(x.dtype).removeprefix("torch."),
        "format": fmt.name,
        "threads": torch.get_num_threads(),
        "bound": memory_bound(x, fmt),
        "ms": times,
        "ratio": {n: times[n] / times["copy_"] for n in candidates if n in times and n != "copy_"},
    }


PEERS = ("native", "emulated", "em. compiled", "TorchAO", "AO compiled", "MLX", "ml_dtypes")


def print_peer_row(row: dict[str, Any]) -> None:
    """One line, in ``copy_`` times."""
    shape = "x".join(map(str, row["shape"]))
    cells = "".join(
        f"{row['ratio'][n]:13.2f}" if n in row["ratio"] else f"{'-':>13}" for n in PEERS
    )
    print(
        f"{shape:>10} {row['dtype']:9}{row['format']:9}{row['threads']:2}{row['ms']['copy_']:10.3f}"
        f"{row['bound']:7.2f}{cells}{row['ms']['others']:8.2f}",
        flush=True,
    )


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Time over size of the native kernel and the peers, float32 to FP8, all threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    threads = max(row["threads"] for row in rows)
    chosen = [
        row
        for row in rows
        if (row["dtype"], row["format"], row["threads"]) == ("float32", "fp8_e4m3", threads)
    ]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name in ("copy_", *PEERS):
        points = [
            (row["shape"][0] * row["shape"][1], row["ms"][name])
            for row in chosen
            if name in row["ms"]
        ]
        if points:
            axes.loglog(*zip(*points, strict=True), marker="o", label=name)
    axes.set(xlabel="elements", ylabel="milliseconds, minimum", title="float32 to fp8_e4m3")
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=4096, help="of the limits' rows")
    parser.add_argument("--repeats", type=int, default=40, help="rounds (default 40)")
    parser.add_argument("--sizes", action="store_true", help="compare peers over all sizes")
    parser.add_argument("--no-peers", action="store_true", help="the limits alone")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--plot", type=Path, help="draw time over size (with --sizes)")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a limit is broken")
    args = parser.parse_args()
    need_native_kernel()
    check_writable("--json", args.json)
    check_writable("--plot", args.plot)
    logging.disable(logging.WARNING)  # TorchAO logs which of its extensions don't load
    threads = torch.get_num_threads()
    about = {"date": date.today().isoformat(), "torch": torch.__version__}
    about |= {"aten_mx": aten_mx.__version__, "cpu": cpu_model(), "threads": threads}
    about |= {"capability": torch.backends.cpu.get_cpu_capability(), "size": args.size}
    print(*(f"{name}: {value}" for name, value in about.items()), sep="\n")

    limits = limit_rows(args.size, args.repeats) + small_rows()
    print(f"\n({args.size}, {args.size}), ratios of minima; bound: bytes moved / those of copy_")
    print(f"{'':47}{'ms':>8}{'ratio':>8}{'limit':>7}{'bound':>7}{'others':>8}")
    failures = 0
    for row in limits:
        passed = row["limit"] is None or row["ratio"] <= row["limit"]
        failures += not passed
        limit = "-" if row["limit"] is None else f"{row['limit']:.3g}"
        bound = f"{row['bound']:7.2f}" if "bound" in row else f"{'':7}"
        print(
            f"{'PASS' if passed else 'FAIL'}  {row['what']:41}{row['ms']:8.3f}{row['ratio']:8.2f}"
            f"{limit:>7}{bound}{row['others']:8.2f}"
        )
    peers: list[dict[str, Any]] = []
    if not args.no_peers:
        print("\nIn copy_ times of the same input (FLOOR; compiled: RCEIL)")
        names = "".join(f"{name:>13}" for name in PEERS)
        print(f"{'shape':>10} {'input':9}{'format':9}th  copy_ ms  bound{names}  others")
        for count in sorted({1, threads}) if args.sizes else (threads,):
            torch.set_num_threads(count)
            for shape in SIZES if args.sizes else ((args.size, args.size),):
                for dtype in DTYPES.values():
                    x = torch.randn(shape).to(dtype)
                    for fmt in FORMATS.values():
                        # Each size and thread count would be compiled anew, for minutes in all.
                        whole = count == threads and shape == (args.size, args.size)
                        peers.append(peer_row(x, fmt, 7, with_compiled=whole))
                        print_peer_row(peers[-1])
    if any(row["others"] > BUSY for row in limits):
        print("\nOther processes were busy: run it again before you believe a ratio.")
    write_json(args.json, {"about": about, "limits": limits, "peers": peers})
    if args.plot and peers:
        plot(peers, args.plot)
    return int(args.check and failures > 0)


if __name__ == "__main__":
    run(main)
