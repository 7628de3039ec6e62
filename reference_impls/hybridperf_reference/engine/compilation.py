"""Compile each unit with torch.compile, or keep torch from importing its compiler."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils import flop_counter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hybridperf_reference.engine.chain import Unit

__all__ = ["apply_compile", "disable_compiler", "without_compiler"]

_MOST_VARIANTS = 64  #: most recompilations: shapes of units of one class, in both modes


def apply_compile(units: Sequence[Unit]) -> None:
    """Compile the ``forward`` of each unit separately, in place.

    Units of one class and shape share a compilation, and stage boundaries need no graph breaks.
    """
    torch._dynamo.config.recompile_limit = _MOST_VARIANTS  # noqa: SLF001 - a documented setting
    for unit in units:
        compiled = torch.compile(unit.module.forward, dynamic=False)
        unit.module.forward = compiled


def disable_compiler() -> None:
    """Keep torch from importing its compiler, for a plan that does not compile.

    Otherwise the first call of an optimizer method, or of another function wrapped in
    ``torch._disable_dynamo``, imports it, which takes each rank seconds of CPU time. The wrapper
    caches the function that it calls in an attribute; here the attribute is set to the function.
    """
    hidden = (
        Optimizer.add_param_group,
        Optimizer.load_state_dict,
        Optimizer.state_dict,
        Optimizer.zero_grad,
        DistributedDataParallel._inside_ddp_forward.__wrapped__,  # type: ignore[attr-defined]  # noqa: SLF001 - wrapped in a context manager
        flop_counter._FlopCounterMode.__torch_dispatch__,  # noqa: SLF001
    )
    for wrapper in hidden:
        function = getattr(wrapper, "__wrapped__", None)
        if function is not None:
            function.__dict__.setdefault("__dynamo_disable", function)


@contextlib.contextmanager
def without_compiler() -> Iterator[None]:
    """Replace ``torch._dynamo`` in the body by a stub, unless it has been imported already.

    The constructor of DistributedDataParallel imports the compiler only to read one setting.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    settings = SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")  # the default
    vars(torch)["_dynamo"] = SimpleNamespace(utils=settings)
    try:
        yield
    finally:
        del vars(torch)["_dynamo"]  # so that torch imports it if it is needed later
