"""What other libraries are told about the ops; each module loads with its library."""

from types import ModuleType

from aten_mx.after_import import after_import


def _enable_dtensor(_: ModuleType) -> None:
    from aten_mx.integrations.dtensor import register_sharding_rules

    register_sharding_rules()


after_import("torch.distributed.tensor", _enable_dtensor)
