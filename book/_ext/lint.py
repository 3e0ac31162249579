"""Lint and format the code cells of chapters, which ruff does not read by itself: ``--fix`` to rewrite them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CELL = re.compile(r"(```\{code-cell\} ipython3\n(?:---\n.*?\n---\n|(?::[a-z]+:[^\n]*\n)+\n?)?)(.*?)(```\n)", re.DOTALL)
WIDTH = "88"  # what fits beside the sidebar
RUFF = [str(Path(sys.executable).with_name("ruff"))]
# A chapter is one program: names and imports are shared by its cells; docstrings and types are the package's.
CHECK = ["check", "--quiet", "--line-length", WIDTH, "--ignore", "D,ANN,E402,B018,B905", "--stdin-filename"]


def formatted(code: str) -> str:
    """Return the code of one cell as ruff formats it."""
    done = subprocess.run(
        [*RUFF, "format", "--line-length", WIDTH, "-"], input=code, capture_output=True, text=True, check=False
    )
    return done.stdout if done.returncode == 0 else code


def main(arguments: list[str]) -> int:
    """Check every chapter named; return 1 where one is not as it should be."""
    wrong = 0
    for path in (Path(argument) for argument in arguments if argument != "--fix"):
        source = path.read_text(encoding="utf-8")
        tidy = CELL.sub(lambda cell: cell[1] + formatted(cell[2]) + cell[3], source)
        if tidy != source and "--fix" in arguments:
            path.write_text(tidy, encoding="utf-8")
        elif tidy != source:
            print(f"{path}: code cells are not formatted; python book/_ext/lint.py --fix {path}")
            wrong = 1
        program = "\n".join(cell[2] for cell in CELL.finditer(tidy))
        wrong |= subprocess.run([*RUFF, *CHECK, f"{path}.py", "-"], input=program, text=True, check=False).returncode
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
