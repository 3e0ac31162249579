"""The README's program prints what the README says."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language):
    (found,) = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_program_of_the_readme_prints_what_it_shows(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", block("python")], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == block("text")


def test_the_program_is_about_ten_lines():
    assert len([line for line in block("python").splitlines() if line.strip()]) <= 10


def test_every_file_that_the_readme_links_exists():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://arxiv.org/") or (ROOT / target).exists(), target


def test_every_verb_of_the_readme_is_a_verb_of_the_makefile():
    verbs = set(re.findall(r"make ([a-z-]+)", README))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"book", "test"} <= verbs
    for verb in verbs:
        assert re.search(rf"^{verb}:.*## ", makefile, re.MULTILINE), verb


def test_every_verb_of_the_workflows_is_a_verb_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = []
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        commands += [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    verbs = set(re.findall(r"^make ([a-z-]+)", "\n".join(commands), re.MULTILINE))
    assert verbs >= {"test", "book", "notebooks", "links"}
    for verb in verbs:
        assert re.search(rf"^{verb}:.*## ", makefile, re.MULTILINE), verb


def test_environment_constraints_and_package_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}
    for group in (project["dependencies"], *project["optional-dependencies"].values()):
        for wanted in map(Requirement, group):
            (exact,) = pins[canonicalize_name(wanted.name)].specifier
            assert exact.operator == "==" and wanted.specifier.contains(exact.version), wanted
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python = next(line for line in environment["dependencies"] if str(line).startswith("python="))
    assert SpecifierSet(project["requires-python"]).contains(python.removeprefix("python="))
    (pip,) = (line["pip"] for line in environment["dependencies"] if isinstance(line, dict))
    assert pip == ["--constraint constraints.txt", "--editable .[book,publish,test]"]
