"""How much memory a process has taken."""

from __future__ import annotations

from pathlib import Path

__all__ = ["peak_bytes"]


def peak_bytes() -> int:
    """Return the peak resident memory of this process so far.

    VmHWM, not ru_maxrss: the latter starts at the size of the process that forked this one.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
