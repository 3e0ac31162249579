"""Pack the built site into one file that opens from the file system, without a server."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

from tqdm import tqdm

SITE = Path(__file__).parents[1] / "_build" / "html"
_LEFT_OUT = {".doctrees", ".buildinfo"}


def pack(site: Path, target: Path) -> int:
    """Write a zip of the site, whole or not at all, and return the number of its files.

    Raises
    ------
    FileNotFoundError
        If there is no site.
    """
    if not (site / "index.html").is_file():
        raise FileNotFoundError(f"there is no site in {site}; run make book first")
    files = [path for path in sorted(site.rglob("*")) if path.is_file() and not _LEFT_OUT & set(path.parts)]
    draft = target.with_name(f".{target.name}.tmp")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in tqdm(files, "packing", unit=" files", leave=False):
                archive.write(path, Path("companion-book") / path.relative_to(site))
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return len(files)


if __name__ == "__main__":
    try:
        wanted = Path(sys.argv[1])
        count = pack(SITE, wanted)
    except OSError as error:
        sys.exit(f"error: {error}")
    print(
        f"{wanted}: {count} files, {wanted.stat().st_size / 1e6:.1f} MB; unpack it and open companion-book/index.html"
    )
