"""What is built, imported and checked is what lies in the checkout."""

from __future__ import annotations

import ast
import configparser
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from neve.log import EVENTS

ROOT = Path(__file__).parents[1]
FAMILIES = sorted(
    path.name for room in ("plugins", "examples") for path in ROOT.glob(f"{room}/*/neve_*")
)
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return what a command prints; its failure fails the test."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def files(*folders: str) -> list[Path]:
    """Return what git knows, or would add, below some folders; links are files here."""
    command = ("git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard")
    names = run(*command, *folders).split("\0")
    return [Path(name) for name in names if name and (ROOT / name).exists()]


def pyproject(folder: Path = ROOT) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def words(contract: str, option: str) -> list[str]:
    """Return a list of the import rules, sorted."""
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter", encoding="utf-8")
    return sorted(rules[contract][option].split())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The names of the files in a wheel that was built from the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    return zipfile.ZipFile(next(out.glob("*.whl"))).namelist()


def test_the_wheel_is_the_checkout(wheel: list[str]):
    """Every file of core/ and metal/ is installed as neve and neve.metal, and no other."""
    checkout = {
        re.sub("^core/", "neve/", re.sub("^metal/", "neve/metal/", path.as_posix()))
        for path in files("core", "metal")
        if not (ROOT / path).is_symlink() and path.name != "ruff.toml"
    }

    assert {name for name in wheel if ".dist-info/" not in name} == checkout


def test_the_wheel_has_its_licence(wheel: list[str]):
    """The licence travels with the code."""
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(("link", "target"), [("src/neve", "core"), ("core/metal", "metal")])
def test_the_links_resolve(link: str, target: str):
    """A checkout sees core/ as src/neve and metal/ as neve.metal."""
    assert (ROOT / link).is_symlink()
    assert (ROOT / link).resolve() == ROOT / target


@pytest.mark.parametrize("module", ["neve", "neve.testing.plugin", "neve.metal.runtime.blas"])
def test_the_import_is_light(module: str):
    """What every pytest run or `import neve` imports leaves MLX out."""
    source = f"import sys, {module}; print('mlx' in sys.modules or 'mlx.core' in sys.modules)"

    assert run(sys.executable, "-c", source).strip() == "False"


def test_pyright_finds_every_file(tmp_path: Path):
    """Its include list reaches through both links: empty twins of all files are found."""
    twins = files("core", "metal", "plugins", "examples", "tests", "src")
    for path in twins:
        twin = tmp_path / path
        twin.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_symlink():
            twin.symlink_to((ROOT / path).readlink())
        else:
            twin.touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    statistics = run(sys.executable, "-m", "pyright", "--stats", cwd=tmp_path)
    num_python_files = sum(path.suffix == ".py" for path in twins)

    assert f"Found {num_python_files} source files" in statistics


def test_the_import_rules_name_every_family():
    """The linter takes no pattern for families, so that each one must be listed."""
    strangers = "importlinter:contract:families-are-strangers"
    contract = "importlinter:contract:families-see-the-contract"
    allowed = [line.split(".**")[0] for line in words(contract, "ignore_imports")]

    assert FAMILIES
    assert words("importlinter", "root_packages") == sorted(["neve", *FAMILIES])
    assert words("importlinter:contract:core-knows-no-family", "forbidden_modules") == FAMILIES
    assert words(strangers, "modules") == FAMILIES
    assert words(contract, "source_modules") == FAMILIES
    assert {name for name in allowed if name.startswith("neve_")} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_accepts_this_core(family: str):
    """The families of a checkout can be installed beside its core."""
    folder = next(ROOT.glob(f"*/*/{family}")).parent
    dependencies = [Requirement(line) for line in pyproject(folder)["project"]["dependencies"]]
    core = next(dependency for dependency in dependencies if dependency.name == "neve")

    assert core.specifier.contains(pyproject()["project"]["version"])


def logged_events(path: Path) -> set[str]:
    """Return the literals that a file hands to a method of a logger."""
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOG_METHODS
        and re.search(r"log$|^get_logger\(", ast.unparse(node.func.value))
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_the_list_of_events_is_true():
    """Every event that is logged is listed, and every listed one is logged."""
    sources = [ROOT / path for path in files("core", "metal") if path.suffix == ".py"]

    assert set().union(*map(logged_events, sources)) == EVENTS
