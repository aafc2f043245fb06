"""How densely the long tests try the places where a process can die: `make test THOROUGH=1` tries every one."""

from __future__ import annotations

import os


def stride(usual: int) -> int:
    """From one place to the next: `usual` of them, or 1 with THOROUGH set."""
    return 1 if os.environ.get("THOROUGH") else usual
