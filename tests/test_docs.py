"""What the documentation says is so: its links, its code, its output, its tables."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from neve.testing.suite import FamilySuite

pytestmark = pytest.mark.mlx

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "plugins" / "tutorial.md"
EXAMPLE = ROOT / "examples" / "neve-llama"

FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:```text\n(?P<output>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def _pages():
    folders = [p for p in ROOT.iterdir() if p.is_dir() and p.name[0] != "." and p.name != "src"]
    nested = [page for folder in folders for page in folder.rglob("*.md")]
    return [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md"), *nested]


def _anchors(page):
    """Return the anchors that the headings of a page get on GitHub."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.replace(" ", "-") for heading in kept}


@pytest.fixture(scope="module")
def fences():
    """Return the tutorial's fenced blocks as (language, file, text)."""
    return FENCE.findall(TUTORIAL.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", _pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    """Every relative link leads to a file, and its anchor to a heading."""
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/guide.md",
        "docs/hybrids.md",
        "docs/settings.md",
        "docs/windows.md",
    ],
)
def test_python_prints_what_stands_below_it(page, monkeypatch, capsys):
    """Every block of Python runs, and prints what the next block shows."""
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for run in RUN.finditer(text):
        exec(run["code"], names)
        printed = capsys.readouterr().out.rstrip("\n")

        assert printed == (run["output"] or "").rstrip("\n"), run["code"]


def test_generated_parts_are_up_to_date():
    """FW-2: the tables are what the docstrings say; if not, run `python docs/_generate.py`."""
    generate = runpy.run_path(str(DOCS / "_generate.py"))
    for page in generate["PAGES"]:
        text = page.read_text(encoding="utf-8")

        assert text == generate["render"](text), page


def test_every_variable_is_documented():
    """Whatever environment variable the code reads stands in docs/settings.md."""
    sources = [*(ROOT / "core").rglob("*.py"), *(ROOT / "metal").rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    documented = (DOCS / "settings.md").read_text(encoding="utf-8")
    variables = set(re.findall(r'"((?:NEVE|MLX)_[A-Z_]+)"', code))

    assert {v for v in variables if f"`{v}`" not in documented} == set()


def test_structure_names_every_room():
    """docs/structure.md has one line for each room of core/, and no other."""
    rooms = {
        f"{path.name}/" if path.is_dir() else path.name
        for path in (ROOT / "core").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__")
        or (path / "__init__.py").is_file()
    }
    text = (DOCS / "structure.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)

    assert sorted(named) == sorted(rooms)


def test_hooks_name_clauses_of_the_suite():
    """FW-2: the clause that is said to check a hook exists."""
    named = re.findall(r"`(test_\w+)`", (DOCS / "plugins" / "hooks.md").read_text("utf-8"))

    assert {name for name in named if not hasattr(FamilySuite, name)} == set()


def test_tutorial_shows_the_examples_files(fences):
    """FW-7: a block that bears a file's name is a part of that file."""
    shown = [(name, text) for _, name, text in fences if name]
    differing = [n for n, t in shown if t not in (EXAMPLE / n).read_text(encoding="utf-8")]

    assert shown
    assert differing == []


def test_tutorial_shows_every_hook(fences):
    """FW-7: the tutorial writes each hook of the example's plugin, and no other."""
    hooks = re.compile(r"^@hookimpl\ndef (\w+)", re.MULTILINE)
    shown = hooks.findall("".join(text for _, _, text in fences))
    written = (EXAMPLE / "neve_llama" / "plugin.py").read_text(encoding="utf-8")

    assert set(shown) == set(hooks.findall(written))


def test_tutorials_first_plugin_is_listed_as_it_says(fences, tmp_path):
    """FW-3: a plugin that only says who it is is refused, with the list of what is missing."""
    code = next(text for _, _, text in fences if "def family_info" in text)
    command, output = next(
        text.split("\n", 1) for _, _, text in fences if text.startswith("$ NEVE_PLUGINS=llama")
    )
    package, metadata = tmp_path / "neve_llama", tmp_path / "neve_llama-0.1.0.dist-info"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "plugin.py").write_text(code)
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: neve-llama\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text("[neve.families]\nllama = neve_llama.plugin\n")
    done = subprocess.run(
        [sys.executable, "-m", "neve.cli.main", *command.split()[3:]],
        env={"PYTHONPATH": str(tmp_path), "NEVE_PLUGINS": "llama"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.stdout == output
