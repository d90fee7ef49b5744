"""What a release promises: one version, bounds that are tested, targets that exist, packages with all they need."""

import email
import re
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.version import Version

import stationary

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings its twin
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
SOURCES = sorted((ROOT / "src").glob("**/*.py"))
TESTED = ("gp", "sklearn", "experiments", "ray", "test")  # laplace has its versions in interop/; docs, dev: tools


def texts(*paths):
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def requirements(*extras):
    """name: requirement, of the core and these extras."""
    found = map(Requirement, [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])])
    return {found.name: found for found in found if found.name != "stationary"}


def pins(name, python="3.11"):
    lines = [line for line in (ROOT / name).read_text().splitlines() if not line.startswith("#")]
    found = [Requirement(line) for line in lines]
    chosen = [r for r in found if r.marker is None or r.marker.evaluate({"python_version": python})]
    versions = {r.name.lower().replace("_", "-"): str(r.specifier).removeprefix("==") for r in chosen}
    assert len(versions) == len(chosen), f"a name stands twice in {name} for Python {python}"
    return versions


def test_what_the_workflow_tests_may_skip_no_more_than_the_script():
    script = texts(ROOT / ".ci/run")
    required = re.findall('STATIONARY_REQUIRE="(.+)"', script)
    testing = [job for job in WORKFLOW["jobs"].values() if job["steps"][-1].get("run") in ("make test", "make slow")]
    assert len(testing) == 2 and [job["env"]["STATIONARY_REQUIRE"] for job in testing] == required * 2
    assert WORKFLOW["env"]["LATEX"] in script and all("$LATEX" in job["steps"][-2]["run"] for job in testing)


def test_one_version_everywhere():
    assert "version" in PROJECT["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == stationary.__version__
    versions = re.findall(r"^## (\S+)", texts(ROOT / "CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == stationary.__version__
    assert sorted(map(Version, versions), reverse=True) == list(map(Version, versions))


def test_the_changelog_names_the_lower_bounds_of_the_core():
    latest = texts(ROOT / "CHANGELOG.md").split("\n## ")[1]
    for name, requirement in requirements().items():
        assert f"{name} {str(requirement.specifier).removeprefix('>=')}" in latest


def test_lower_bounds_are_the_versions_that_make_test_min_installs():
    lowest = pins("constraints-min.txt")
    bounds = {name: str(r.specifier).removeprefix(">=") for name, r in requirements(*TESTED).items()}
    assert {name: Version(v) for name, v in bounds.items()} == {name: Version(v) for name, v in lowest.items()}


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_requirement_is_pinned_within_its_bounds(python):
    exact = pins("constraints.txt", python)
    for name, requirement in requirements(*TESTED, "docs", "dev").items():
        assert requirement.specifier.contains(exact[name.lower()]), f"{requirement} against {exact[name.lower()]}"


def make_targets():
    return set(re.findall(r"^([a-z][a-z-]*):", texts(ROOT / "Makefile"), re.MULTILINE))


def test_the_makefile_says_what_its_targets_do():
    text = texts(ROOT / "Makefile")
    assert set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split()) == make_targets()
    assert set(re.findall(r"^# make ([a-z-]+)  ", text, re.MULTILINE)) == make_targets() - {"clean"}


def test_make_targets_that_are_named_exist():
    commands = re.findall(r"(?:^|`)make ((?:[a-z-]+ ?)+)", texts(*PAGES, ROOT / ".ci/run"), re.MULTILINE)
    named = {target for command in commands for target in command.split()}
    assert {"demo", "test", "interop"} <= named <= make_targets()


def test_the_workflow_runs_make_targets_and_nothing_else():
    commands = {job: [step["run"] for step in body["steps"] if "run" in step] for job, body in WORKFLOW["jobs"].items()}
    targets = [[line for line in lines if not line.endswith(" $LATEX")] for lines in commands.values()]
    assert all(len(lines) == 1 and lines[0].startswith("make ") for lines in targets), commands
    run = {line.removeprefix("make ") for [line] in targets}
    assert run <= make_targets()
    assert run >= {"test", "lint", "docs", "dist", "test-min", "test-latest"}


def test_pythons_are_the_same_in_classifiers_and_workflow():
    classified = [c.rsplit(" ")[-1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python"] == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"


def test_extras_that_are_named_exist():
    text = texts(*PAGES, *SOURCES)
    groups = re.findall(r"(?:stationary|\.)\[([a-z,]+)\]'", text)
    named = {*re.findall(r"\bextra\(\"(\w+)\"\)", text), *(name for group in groups for name in group.split(","))}
    assert {"gp", "sklearn", "experiments", "ray", "laplace"} <= named <= set(EXTRAS)


def test_links_of_contributing_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", texts(ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"))
    assert links and not [link for link in links if not (ROOT / link).exists()]


def overdue(text, version):
    """The versions up to this one in which ``text`` says that something will have been removed."""
    calls = re.findall(r"warn\((.*?)DeprecationWarning", text, re.DOTALL)
    promised = [re.search(r"removed in (\d+\.\d+)", call) for call in calls]
    assert all(promised), 'a DeprecationWarning says: it will be removed in MAJOR.MINOR"'
    return [match[1] for match in promised if Version(match[1]) <= Version(version)]


def test_what_was_to_be_removed_is_removed():
    example = texts(ROOT / "CONTRIBUTING.md")
    assert overdue(example, "0.2.9") == [] and overdue(example, "0.3.0") == ["0.3"]
    with pytest.raises(AssertionError, match="will be removed in"):
        overdue('warnings.warn("use the other one", DeprecationWarning)', "0.1.0")
    assert overdue(texts(*SOURCES), stationary.__version__) == []


def test_the_typed_program_runs():
    runpy.run_path(str(ROOT / "tests/typing/public_api.py"), run_name="__main__")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Wheel and sdist, each built twice."""
    folders = [tmp_path_factory.mktemp("dist") for _ in range(2)]
    for folder in folders:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
        subprocess.run(command, check=True, capture_output=True)
    return [sorted(folder.iterdir()) for folder in folders]


@pytest.mark.slow
def test_building_again_gives_the_same_bytes(built):
    first, second = ({path.name: path.read_bytes() for path in paths} for paths in built)
    assert first == second and len(first) == 2


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_its_metadata_are_valid(built):
    (wheel,) = (path for path in built[0] if path.suffix == ".whl")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith("/METADATA"))
    package = ROOT / "src/stationary"
    files = {path for path in package.glob("**/*") if path.is_file() and "__pycache__" not in path.parts}
    assert held == {str(path.relative_to(ROOT / "src")) for path in files}
    assert {"stationary/py.typed", "stationary/explorer/page.html", "stationary/lab/data/files/adult.csv.xz"} <= held
    checked = Metadata.from_email(metadata, validate=True)
    assert checked.version == Version(stationary.__version__) and checked.license_expression == "Apache-2.0"
    assert email.message_from_bytes(metadata)["Description-Content-Type"] == "text/markdown"


@pytest.mark.slow
def test_the_sdist_is_the_repository_without_large_files(built):
    (sdist,) = (path for path in built[0] if path.suffix == ".gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.split("/", 1)[1] for member in archive.getmembers()}
    for part in (
        "pyproject.toml",
        "Makefile",
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "mkdocs.yml",
    ):
        assert part in names
    for folder in ("src", "tests", "docs", "examples", "benchmarks", "interop", "results", ".github"):
        assert any(name.startswith(f"{folder}/") for name in names), folder
    assert not [name for name in names if name.endswith((".safetensors", ".pyc")) or name.startswith((".venv", "out/"))]
    assert sdist.stat().st_size < 10e6
