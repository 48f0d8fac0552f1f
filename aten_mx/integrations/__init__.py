"""Other libraries on these ops: DTensor when it is imported, TorchAO when the user enables it."""

from types import ModuleType

from aten_mx.after_import import after_import


def _tell_dtensor(_: ModuleType) -> None:
    import aten_mx.integrations.dtensor  # noqa: F401  # registers its rules


after_import(
    "torch.distributed.tensor",
    _tell_dtensor,
    otherwise="DTensor has no sharding rules for the operators, so call them on local tensors",
)
