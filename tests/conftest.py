"""How hypothesis draws: the same examples in every run, so that a test that passed passes again; or ever new ones.

`HYPOTHESIS_PROFILE=explore pytest` looks for examples that nobody has seen yet.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
