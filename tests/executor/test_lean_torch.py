"""What a worker imports, and that what it leaves out can still be had."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from superinfer.executor.lean_torch import META_KERNELS, lean_torch_import
from superinfer.executor.worker import DEFAULT_RUNNER, load_runner
with lean_torch_import():
    load_runner(DEFAULT_RUNNER)
left_out = {META_KERNELS, "torch._dynamo", "transformers", "pydantic"}
assert not left_out & set(sys.modules), left_out & set(sys.modules)
import torch, torch._meta_registrations
with lean_torch_import():
    pass
assert torch._meta_registrations is sys.modules[META_KERNELS]
mask = torch.ones(2, 3, device="meta").where(torch.ones(2, 3, dtype=torch.bool, device="meta"), 0.0)
assert mask.shape == (2, 3) and torch.Generator().initial_seed()
"""


def test_a_worker_imports_neither_meta_kernels_nor_contracts_schema_and_may_still_do_so_later() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
