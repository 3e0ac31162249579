"""The site, built once for all tests that look at it."""

import os
import subprocess
import sys
from pathlib import Path

import bare as machine
import published
import pytest
import repository
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


@pytest.fixture(scope="session")
def notebooks(site, tmp_path_factory):
    """Every page as a notebook; the chapters have been executed for the site before."""
    origin = tmp_path_factory.mktemp("snapshot") / "repository"
    machine.snapshot(origin)
    target = tmp_path_factory.mktemp("published") / "branch"
    published.publish(target, origin.as_uri(), repository.commit(origin))
    return target


@pytest.fixture(scope="session")
def bare(notebooks, tmp_path_factory):
    """A machine without this book, on which the published chapters are running."""
    found = machine.Bare(tmp_path_factory.mktemp("bare"), notebooks)
    yield found
    found.close()


@pytest.fixture(scope="session", autouse=True)
def _beside_the_other_tests(request):
    """Published chapters take minutes: where they are wanted at all, they begin now and run beside the other tests."""
    if any("test_published" in item.nodeid for item in request.session.items):
        request.getfixturevalue("bare")
