"""A wheel of the package carries what the zoo needs: it loads from there with no network and no clone."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import companion

ROOT = Path(__file__).parents[2]
LOAD = """
import json, companion
loaded = {name: len(companion.load(name).layers) for name in companion.zoo.names()}
print(json.dumps([companion.__file__, loaded]))
"""


def test_the_zoo_loads_from_a_wheel(tmp_path):
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", "wheels"]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("companion", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    subprocess.run([*command, str(source)], cwd=tmp_path, check=True)
    (wheel,) = (tmp_path / "wheels").glob("companion-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "HF_HUB_OFFLINE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
    )
    file, loaded = json.loads(found.stdout.splitlines()[-1])
    assert Path(file).is_relative_to(tmp_path / "site")
    assert loaded == {name: companion.zoo.card(name)["layers"] for name in companion.zoo.names()}
