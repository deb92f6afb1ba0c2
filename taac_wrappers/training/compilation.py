"""``--compile``: computing gradients through ``torch.compile``, in one graph that serves batches of every size."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch.fx.experimental._config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from tqdm import tqdm


def compiled(gradients: Callable[..., Any]) -> Callable[..., Any]:
    """``gradients``, a function that ends in ``backward()``, compiled as a whole at its first call.

    Random numbers are torch's own, in the same order as without compiling, so that runs can be repeated and resumed.
    """
    _require_compiler()
    torch._dynamo.config.trace_autograd_ops = True  # or backward() would break the graph
    torch._inductor.config.fallback_random = True
    torch.fx.experimental._config.use_duck_shape = False  # sizes that are equal in the first batch may differ later
    fast = torch.compile(gradients, fullgraph=True, dynamic=True)
    is_first = True

    def call(*args: Any) -> Any:
        nonlocal is_first
        if not is_first:
            return fast(*args)
        is_first, start = False, time.monotonic()
        result = fast(*args)
        tqdm.write(f"compiled {gradients.__name__} in {time.monotonic() - start:.1f} s", file=sys.stderr)
        return result

    return call


def _require_compiler() -> None:
    """Raise ValueError if there is nothing to compile C++ with, which torch would find out at the first update."""
    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ValueError("--compile needs a C++ compiler (g++ or clang++) on the PATH, and there is none") from error
