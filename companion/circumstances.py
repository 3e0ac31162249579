"""Where and when a result was computed: commit, hardware and time, as every table and page of the book says them."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

import torch

__all__ = ["circumstances"]


def circumstances(folder: Path, device: str = "cpu") -> dict[str, str]:
    """Return the commit that ``folder`` is at, the hardware with its accelerator, and the time.

    Parameters
    ----------
    folder : Path
        In a git checkout, or not.
    device : str
        What is computed on; an accelerator counts only where it is used.
    """
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    accelerator = torch.cuda.get_device_name(device) if device.startswith("cuda") else "no GPU"
    return {
        "commit": commit or "not a git checkout",
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {accelerator}",
    }
