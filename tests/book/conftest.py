"""The site, built once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import runner

REPOSITORY = "https://github.com/owner/name"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """Build as a publisher would, with warnings as errors; chapters that are fresh are not executed again."""
    output = tmp_path_factory.mktemp("site")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COMPANION_REPOSITORY": REPOSITORY}
    done = subprocess.run(
        ["jupyter-book", "build", "book", "-W", "--keep-going", "--path-output", str(output)],
        cwd=runner.ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return output / "_build" / "html"
