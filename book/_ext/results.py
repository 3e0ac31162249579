"""Results travel: pack the studies that a machine has computed, and put another machine's into the repository.

``python book/_ext/results.py pack FILE`` writes an archive of all kept studies with their checksums;
``python book/_ext/results.py unpack FILE`` checks one and puts its studies into ``book/results``, from where the
chapters take the models that were not run here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

import runner

from companion.errors import StudyError
from companion.study import Study

RESULTS = runner.ROOT / "book" / "results"
KEPT = Path(os.environ.get("COMPANION_CACHE", runner.ROOT / "book" / "_build" / "kept")) / "studies"
_SUMS = "SHA256SUMS.json"


def pack(file: Path, kept: Path = KEPT) -> list[str]:
    """Write every kept study into one archive, the newest of each model, and return the models' names.

    Raises
    ------
    StudyError
        If there is no study to pack.
    """
    newest: dict[str, Path] = {}
    for path in sorted(kept.glob("*.json"), key=lambda p: p.stat().st_mtime):
        newest[Study.read(path).name] = path
    if not newest:
        raise StudyError(f"{kept} holds no study; run make book PROFILE=paper first")
    names = {f"{name.replace('/', '--')}.json": path for name, path in sorted(newest.items())}
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in names.items()}
    temporary = file.with_name(f"{file.name}.tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in names.items():
            archive.write(path, name)
        archive.writestr(_SUMS, json.dumps(sums, indent=1))
    temporary.replace(file)
    return sorted(newest)


def unpack(file: Path, results: Path = RESULTS) -> list[str]:
    """Check an archive and put its studies into the repository, all of them or none; return the models' names.

    Raises
    ------
    StudyError
        If the archive cannot be read, a file is not the one on its list, or a study lacks its provenance.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            sums = json.loads(archive.read(_SUMS))
            contents = {name: archive.read(name) for name in archive.namelist() if name != _SUMS}
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise StudyError(f"{file} is no archive of results: {error}") from error
    if set(sums) != set(contents):
        raise StudyError(f"{file}: its list names {sorted(sums)}, but it holds {sorted(contents)}")
    for name, content in contents.items():
        if Path(name).name != name or not name.endswith(".json"):
            raise StudyError(f"{file}: {name!r} is no name of a study")
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise StudyError(f"{file}: {name} is damaged or was changed: its SHA-256 is not the one on the list")
    results.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=results, prefix=".import-") as folder:
        studies = []
        for name, content in contents.items():
            path = Path(folder) / name
            path.write_bytes(content)
            found = Study.read(path)
            missing = {"model", "versions", "commit", "hardware", "time", "seed", "texts"} - set(found.provenance)
            if found.failure or missing:
                raise StudyError(f"{file}: {name} says not how it was computed: {sorted(missing) or found.failure}")
            studies.append((path, found.name))
        for path, _ in studies:
            path.replace(results / path.name)
    return sorted(name for _, name in studies)


def main() -> int:
    """Pack or unpack from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["pack", "unpack"])
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    try:
        names = (pack if arguments.verb == "pack" else unpack)(arguments.file)
    except StudyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.verb}ed {len(names)} models: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
