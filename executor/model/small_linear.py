"""How many token counts a worker runs once at its start, so that each has its kernels."""

from __future__ import annotations

TOKEN_TILE = 8
