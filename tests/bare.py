"""A machine as Colab gives it, and published notebooks that run on it while other tests go on."""

import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import runner

# Chapters that take long run on less here; the book itself runs them whole.
SHORTER = {
    "steering": {"models": {"zoo/gpt2": "english", "minilm": "english", "rxnmapper": "reactions"}},
    "steering-price": {"models": ["zoo/gpt2"], "layers": {"last": -1}, "costs": [0.5]},
    "theory": {"runs": 10},
    "theory-limits": {"runs": 12},
    "theory-states": {"runs": 10, "starts": 100},
}


def snapshot(root):
    """The working tree as a repository of one commit: what a publishing job has checked out."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    files = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        source = runner.ROOT / name
        if source.is_symlink() or source.is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / name, follow_symlinks=False)
    author = ["-c", "user.name=test", "-c", "user.email=test", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*author, "commit", "-q", "-m", "snapshot"]):
        subprocess.run(["git", *command], cwd=root, check=True)


class Bare:
    """A virtual environment with a torch, a kernel, and nothing of this book; its chapters run one after the other.

    The first cell of the first one installs the package.
    """

    def __init__(self, folder, notebooks):
        self.folder, self.notebooks = folder, notebooks
        self.python = folder / "venv" / "bin" / "python"
        self.pool = ThreadPoolExecutor(1)
        self.made = self.pool.submit(self._make)
        chapters = [source.stem for source in runner.chapters()]
        self.runs = {name: self.pool.submit(self.chapter, name) for name in chapters}

    def close(self):
        self.pool.shutdown(cancel_futures=True)

    def result(self, name):
        """How a chapter ended; an exception where the machine could not be made."""
        self.made.result()
        return self.runs[name].result()

    @property
    def torch(self):
        """The time at which its torch was written."""
        return next((self.folder / "venv").glob("lib/python*/site-packages/torch/version.py")).stat().st_mtime_ns

    def chapter(self, name):
        kept = str(runner.ROOT / "book" / "_build" / "kept")  # what the site's build computed
        return self.execute(f"notebooks/{name}", SHORTER.get(name, {}), COMPANION_CACHE=kept)

    def execute(self, page, parameters, **environment):
        """Run one notebook by papermill with the bare kernel."""
        output = self.folder / f"{Path(page).name}.ipynb"
        command = [sys.executable, "-m", "papermill", str(self.notebooks / f"{page}.ipynb"), str(output)]
        command += ["--kernel", "bare", "--no-progress-bar", "--cwd", str(self.folder)]
        for key, value in parameters.items():
            command += ["--parameters_yaml", f"{key}: {value}"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        kernels = {"JUPYTER_PATH": str(self.folder / "venv" / "share" / "jupyter"), "OMP_NUM_THREADS": "1"}
        whole = inherited | kernels | environment
        return subprocess.run(command, env=whole, capture_output=True, text=True, timeout=900)

    def _make(self):
        venv.create(self.folder / "venv", with_pip=True)
        pins = (runner.ROOT / "constraints.txt").read_text().splitlines()
        torch = next(pin for pin in pins if pin.startswith("torch=="))
        for command in (
            ["pip", "install", "--quiet", "--disable-pip-version-check", torch, "ipykernel"],
            ["ipykernel", "install", "--sys-prefix", "--name", "bare"],
        ):
            subprocess.run([self.python, "-m", *command], check=True, capture_output=True)
        return self.torch
