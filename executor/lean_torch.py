"""Imports torch without what a worker has no use for: a third of its import.

Left out are the meta kernels that torch registers from Python, which tell the shapes of results to tracing compilers
and to tensors on the "meta" device, and the search of all installed packages for back ends of other devices. Whoever
needs the former later imports `torch._meta_registrations`, as torch itself would have done; until then
`torch.Generator` and tensors on "meta" do not work.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator

META_KERNELS = "torch._meta_registrations"
SEARCH_FOR_BACK_ENDS = "TORCH_DEVICE_BACKEND_AUTOLOAD"


@contextlib.contextmanager
def lean_torch_import() -> Iterator[None]:
    """Within it a first import of torch leaves that out. Nothing happens where torch is there already."""
    if "torch" in sys.modules:
        yield
        return
    placeholder = types.ModuleType(META_KERNELS)
    sys.modules[META_KERNELS] = placeholder
    os.environ.setdefault(SEARCH_FOR_BACK_ENDS, "0")
    try:
        yield
    finally:
        if sys.modules.get(META_KERNELS) is placeholder:
            del sys.modules[META_KERNELS]
