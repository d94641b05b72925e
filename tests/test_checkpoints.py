"""The tiny checkpoints hold what their README says, and their prompts can be made again."""

import importlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "checkpoints"
NAMES = sorted(path.parent.name for path in CHECKPOINTS.glob("*/config.json"))
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "golden.json",
    "logits.npz",
    "model.safetensors",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
}
GOLDEN_FIELDS = {"name", "architecture", "transformers", "torch", "eos_token_id", "prompts"}
PROMPT_FIELDS = {"id", "max_new", "text", "ids", "n_ids", "f32", "bf16"}
CONTINUATION_FIELDS = {
    "tokens",
    "text",
    "margins",
    "min_margin",
    "top5",
    "prompt_nll",
    "prompt_argmax_tail",
}
DRAFT_FIELDS = {"draft_tokens", "accepted", "of", "top5_first_draft"}
MAX_BINARY_BYTES = 60_000_000

each_checkpoint = pytest.mark.parametrize("name", NAMES)


def read_golden(name: str) -> dict[str, Any]:
    return json.loads((CHECKPOINTS / name / "golden.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def recipe_prompts() -> Iterator[list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKPOINTS)
        prompts = importlib.import_module("recipe.prompts")
        yield [prompt.record() for prompt in prompts.build_prompts()]


def test_nine_checkpoints_are_listed():
    """The README's table names every folder."""
    table = (CHECKPOINTS / "README.md").read_text(encoding="utf-8")

    assert len(NAMES) == 9
    assert [name for name in NAMES if f"| `{name}` |" not in table] == []


@each_checkpoint
def test_files(name: str):
    """A checkpoint's folder holds the files that the README lists, and no others."""
    text = (CHECKPOINTS / "README.md").read_text(encoding="utf-8")

    assert {path.name for path in (CHECKPOINTS / name).iterdir()} == FILES
    assert [file for file in FILES if f"`{file}`" not in text] == []


@each_checkpoint
def test_golden_fields(name: str):
    """golden.json has the documented fields, for 19 prompts."""
    golden = read_golden(name)

    assert golden.keys() >= GOLDEN_FIELDS | {"summary"}
    assert golden["name"] == name
    assert len(golden["prompts"]) == 19
    for prompt in golden["prompts"]:
        assert prompt.keys() >= PROMPT_FIELDS
        assert prompt["n_ids"] == len(prompt["ids"])
        assert ("expect" in prompt) == ("recall_ok" in prompt)
        for dtype in ("f32", "bf16"):
            assert prompt[dtype].keys() == CONTINUATION_FIELDS
            assert len(prompt[dtype]["margins"]) == len(prompt[dtype]["tokens"])


@each_checkpoint
def test_drafts_are_recorded_where_there_is_a_head(name: str):
    """Every prompt of a checkpoint with an MTP head has drafts, one for each later token."""
    config = json.loads((CHECKPOINTS / name / "config.json").read_text(encoding="utf-8"))
    has_head = config.get("text_config", config).get("mtp_num_hidden_layers", 0) > 0

    for prompt in read_golden(name)["prompts"]:
        assert ("mtp" in prompt) == has_head
        if has_head:
            assert prompt["mtp"].keys() == DRAFT_FIELDS
            assert prompt["mtp"]["of"] == len(prompt["f32"]["tokens"]) - 1


@each_checkpoint
def test_recipe_builds_the_stored_prompts(name: str, recipe_prompts: list[dict[str, Any]]):
    """The recipe's prompts are the stored ones, and the stored tokenizer gives their ids."""
    tokenizer = Tokenizer.from_file(str(CHECKPOINTS / name / "tokenizer.json"))
    stored = read_golden(name)["prompts"]

    assert [prompt["id"] for prompt in recipe_prompts] == [prompt["id"] for prompt in stored]
    for built, golden in zip(recipe_prompts, stored, strict=True):
        assert built == {field: golden[field] for field in built}
        assert tokenizer.encode(built["text"], add_special_tokens=False).ids == golden["ids"]


def test_binary_files_stay_small():
    """All binary files of the repository together are below 60 MB."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout and git")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]

    assert sum(path.stat().st_size for path in files if is_binary(path)) < MAX_BINARY_BYTES


def is_binary(path: Path) -> bool:
    """Return whether git would call a file binary."""
    with path.open("rb") as file:
        return b"\0" in file.read(8000)
