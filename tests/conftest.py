"""What holds for every test: the same examples in every run, and which tests run one after the other.

`HYPOTHESIS_PROFILE=explore pytest` looks for examples that nobody has seen yet.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# These start engines and servers, or time steps: two at once would take each other's cores.
ENGINES = {
    "tests/executor/test_engine.py",
    "tests/executor/test_engine_devices.py",
    "tests/executor/test_engine_kinds.py",
    "tests/executor/test_engine_life.py",
    "tests/executor/test_engine_real_model.py",
    "tests/executor/test_worker_forks.py",
    "tests/executor/test_worker_process.py",
    "tests/superinfer_cli/bench/test_command.py",
    "tests/superinfer_cli/bench/test_run.py",
    "tests/superinfer_cli/serve/test_end_to_end.py",
    "tests/superinfer_cli/test_model_directory.py",
    "tests/superinfer_cli/test_profile.py",
}
# Kernels are compiled by whoever is first.
KERNELS = "tests/executor/model/"


def group(test: str) -> str:
    """Tests of one group run one after the other in one process, all others wherever there is room."""
    path = test.partition("::")[0]
    if path in ENGINES:
        return "engines"
    return "kernels" if path.startswith(KERNELS) else test


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Where tests are spread over processes: by group."""
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    return ByGroup(config, log)
