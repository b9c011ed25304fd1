"""Where converted models and measured profiles are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$SUPERINFER_CACHE`, else `$XDG_CACHE_HOME/superinfer`, else `~/.cache/superinfer`; not created here."""
    if explicit := os.environ.get("SUPERINFER_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "superinfer"
