"""Run every benchmark and write ``benchmarks/results.json``, whole or not at all."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks import spectra, traces

RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    """Measure, print each row as it comes, and write all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="runs behind each median (default 5)")
    repeats = parser.parse_args().repeats
    found: dict[str, object] = {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "scipy")},
        "environment": {key: value for key, value in os.environ.items() if key.startswith("OPENBLAS")},
    }
    print("trace against the bare forward pass (a few minutes)", flush=True)
    found["trace"] = rows = traces.measure(repeats)
    print(*rows, sep="\n", flush=True)
    print("spectrum against numpy.linalg.eig (ten to twenty minutes, most of it numpy's)", flush=True)
    rows = []
    for row in spectra.measure(repeats):
        print(row, flush=True)
        rows.append(row)
    found["spectrum"] = rows
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)
    print(f"wrote {RESULTS}")


if __name__ == "__main__":
    main()
