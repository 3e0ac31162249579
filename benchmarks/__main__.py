"""Run every benchmark and write ``benchmarks/results.json``, whole or not at all."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import book, checkpoints, edits, long, spectra, starts, traces

RESULTS = Path(__file__).with_name("results.json")
PARTS = {
    "trace": traces.measure,
    "spectrum": spectra.measure,
    "starts": starts.measure,
    "edits": edits.measure,
    "checkpoints": checkpoints.measure,
    "long": long.measure,
    "book": book.measure,
}


def main() -> None:
    """Measure, print each row as it comes, and write all of them; parts that are not run keep their figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--repeats", type=int, default=5, help="runs behind each median (default 5)")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
    for part in arguments.parts:
        measure = PARTS[part]
        print(f"{part}: {(measure.__doc__ or '').splitlines()[0]}", flush=True)
        rows = []
        for row in measure(arguments.repeats):
            print(row, flush=True)
            rows.append(row)
        found[part] = {**_circumstances(), "rows": rows}
        temporary = RESULTS.with_suffix(".tmp")
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        temporary.replace(RESULTS)
    print(f"wrote {RESULTS}")


def _circumstances() -> dict[str, Any]:
    return {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "machine": {"architecture": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "transformers", "numpy", "scipy")},
        "environment": {key: value for key, value in os.environ.items() if key.startswith("OPENBLAS")},
    }


if __name__ == "__main__":
    main()
