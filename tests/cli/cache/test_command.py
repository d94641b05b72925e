"""`neve cache`: the store without a model."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys

import click
import pytest

import neve
from neve.cli.cache.command import cache
from neve.cli.cache.options import parse_size, size_text, time_text
from neve.coldtier.inspection.handle import ColdStoreHandle, cold_store
from neve.coldtier.objects.format import KvGeometry, encode, encode_tokens, kv_layout
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.coldtier.stats import Counters
from neve.coldtier.store.directory import FORMAT
from neve.coldtier.store.quota import StoreLimits
from neve.coldtier.store.store import ColdStore
from neve.contract.page_format import keys_and_values
from neve.ids import ColdKey, Fingerprint

ALICE, BOB = Fingerprint(b"\xa1" * 32), Fingerprint(b"\xb0" * 32)
BLOCK = kv_layout(KvGeometry(4, 1, keys_and_values(1, 2, 2), "F32"))
STATE = ObjectLayout(ColdGroup.CONV_STATE, [TensorSpec("layer.0.conv", "BF16", (2,))])
USED_NS = 1_700_000_000 * 10**9
SECRET = 7777
STORY = "Once upon a time there was a fox who lived in a wood and liked to run. " * 6


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    """Keep away from the user's own store, and from full disks."""
    monkeypatch.setenv("MLX_COLD_CACHE_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("MLX_COLD_MIN_FREE_GB", "0")
    monkeypatch.setenv("MLX_COLD_QUOTA_GB", "0.001")


def name_of(value, group=ColdGroup.KV) -> ObjectName:
    return ObjectName(ColdKey(hashlib.sha256(bytes([value])).digest()), group)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a store: three blocks of one model, state of another."""
    store = ColdStore.open(tmp_path / "x" / FORMAT, StoreLimits(min_free_bytes=0), Counters())
    payload = [encode_tokens([SECRET] * 4), bytes(32), bytes(32)]
    for i in range(3):
        parts = encode(name_of(i), ALICE, BLOCK, payload)
        store.write(name_of(i), parts, USED_NS - i * 10**9)
    state = name_of(3, ColdGroup.CONV_STATE)
    store.write(state, encode(state, BOB, STATE, [bytes(4)]), USED_NS - 10 * 10**9)
    store.close()
    return tmp_path / "x"


@pytest.fixture
def path_of(folder):
    def find(name):
        return folder / FORMAT / "objects" / name.file_name[:2] / name.file_name

    return find


@pytest.fixture
def on(run, folder):
    """Run a subcommand on the store."""
    return lambda command, *rest, **options: run(
        "cache", command, "--dir", str(folder), *rest, **options
    )


def printed(done, exit_code=0):
    """Return the JSON that a command wrote."""
    assert (done.exit_code, done.stderr) == (exit_code, "")
    return json.loads(done.stdout)


def test_every_subcommand_explains_itself(run):
    """UX-2: every subcommand has a whole sentence, and every option a help text."""
    assert sorted(cache.commands) == [
        "clear",
        "explain",
        "export",
        "import",
        "ls",
        "prune",
        "stats",
        "verify",
    ]
    assert "..." not in run("cache", "--help").stdout.partition("Commands:")[2]
    for command in cache.commands.values():
        assert all(p.help for p in command.params if isinstance(p, click.Option))
        assert {"folder", "as_json"} <= {p.name for p in command.params}


# -- ls ------------------------------------------------------------------------------------


def test_ls(on):
    """CT-12: objects by model, the most recently used first, with size, use and tokens."""
    done = on("ls")
    lines = [line.split() for line in done.stdout.splitlines() if line]

    assert done.exit_code == 0
    assert lines[0][1:] == ["4", "objects"]
    assert lines[1][:5] == ["model", "a1a1a1a1a1a1", "·", "3", "objects,"]
    assert [line[0] for line in lines[3:6]] == [name_of(i).key.hex()[:12] for i in range(3)]
    assert lines[3][1:3] == ["kv", "4"]
    assert lines[3][-1] == "2023-11-14T22:13:20Z"
    assert lines[6][1] == "b0b0b0b0b0b0"
    assert lines[8][:3] == [name_of(3).key.hex()[:12], "conv_state", "-"]


def test_ls_shows_no_content(on):
    """CT-12: neither token ids nor text are listed."""
    assert str(SECRET) not in on("ls").stdout + on("ls", "--json").stdout


def test_ls_json(on, folder):
    """CT-12: --json has all objects, with whole keys."""
    found = printed(on("ls", "--json"))

    assert found["root"] == str(folder / FORMAT)
    assert [(m["model"], m["num_objects"]) for m in found["models"]] == [
        (ALICE.hex(), 3),
        (BOB.hex(), 1),
    ]
    assert found["models"][0]["objects"][0] == {
        "key": name_of(0).key.hex(),
        "group": "kv",
        "bytes": BLOCK.max_bytes,
        "last_use": "2023-11-14T22:13:20Z",
        "tokens": 4,
    }


def test_ls_model_and_limit(on):
    """CT-12: one model's objects, and not more of them than asked for."""
    done = on("ls", "--model", "A1", "--limit", "1")
    found = printed(on("ls", "--model", "a1", "--limit", "1", "--json"))

    assert "b0b0" not in done.stdout
    assert "and 2 more" in done.stdout
    assert (found["models"][0]["num_objects"], len(found["models"][0]["objects"])) == (3, 1)


@pytest.mark.parametrize("command", [["ls"], ["clear", "--yes"]])
def test_unknown_model(on, command):
    """CT-12: a fingerprint that no model has is wrong input, and the known ones are said."""
    done = on(*command, "--model", "c0")

    assert done.exit_code == 2
    assert "known: a1a1a1a1a1a1a1a1, b0b0b0b0b0b0b0b0" in done.stderr


@pytest.mark.parametrize(
    "command", [["ls"], ["stats"], ["verify"], ["prune", "--to", "0"], ["clear", "--yes"]]
)
def test_no_store(run, tmp_path, command):
    """CT-12: where there is no store, a command says where it looked and makes none."""
    done = run("cache", *command)

    assert (done.exit_code, done.stdout) == (1, "")
    assert str(tmp_path / "nowhere" / FORMAT) in done.stderr
    assert not (tmp_path / "nowhere").exists()


# -- stats ---------------------------------------------------------------------------------


def test_stats(on):
    """CT-12: what the store takes and may, for people."""
    done = on("stats")

    assert done.exit_code == 0
    assert "of at most 1.0 MiB" in done.stdout
    assert "2023-11-14T22:13:10Z" in done.stdout
    assert "conv_state  1" in done.stdout
    assert "a1a1a1a1a1a1  3" in done.stdout


def test_stats_json(on):
    """CT-12: the same for programs."""
    found = printed(on("stats", "--json"))
    num_bytes = 3 * BLOCK.max_bytes + STATE.max_bytes

    assert (found["objects"], found["bytes"]) == (4, num_bytes)
    assert found["written_today_bytes"] == num_bytes
    assert found["quota_bytes"] == int(0.001 * 2**30)
    assert found["by_group"]["conv_state"] == {"objects": 1, "bytes": STATE.max_bytes}
    assert found["by_model"][0]["model"] == ALICE.hex()
    assert (found["oldest_use"], found["newest_use"]) == (
        "2023-11-14T22:13:10Z",
        "2023-11-14T22:13:20Z",
    )


# -- verify --------------------------------------------------------------------------------


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_verify(on):
    """CT-12: a sound store passes."""
    assert on("verify", "--jobs", "2").stdout.endswith("all are sound\n")
    assert printed(on("verify", "--json"))["unsound"] == []


def test_verify_finds_damage(on, path_of):
    """CT-12: an unsound object is named with its cause; the exit code is 1."""
    damage(path_of(name_of(1)))
    done = on("verify")
    (found,) = printed(on("verify", "--json"), exit_code=1)["unsound"]

    assert done.exit_code == 1
    assert name_of(1).key.hex()[:12] in done.stdout
    assert (found["key"], found["cause"]) == (name_of(1).key.hex(), "checksum")
    assert path_of(name_of(1)).exists()


def test_verify_prune(on, path_of):
    """CT-12: --prune removes it."""
    damage(path_of(name_of(1)))

    assert on("verify", "--prune").exit_code == 1
    assert not path_of(name_of(1)).exists()
    assert printed(on("verify", "--json"))["objects"] == 3


# -- prune and clear -----------------------------------------------------------------------


def test_prune(on, path_of):
    """CT-12: the least recently used go first; a dry run removes nothing."""
    size = 2 * BLOCK.max_bytes
    assert "would remove 2 objects" in on("prune", "--to", str(size), "--dry-run").stdout
    assert path_of(name_of(2)).exists()
    done = printed(on("prune", "--to", f"{size}B", "--json"))

    assert (done["objects"], done["target_bytes"], done["dry_run"]) == (2, size, False)
    assert [path_of(name_of(i)).exists() for i in range(3)] == [True, True, False]


def test_prune_to_percent_of_the_quota(on):
    """CT-12: percent are those of the quota."""
    found = printed(on("prune", "--to-percent", "50", "--json"))

    assert (found["target_bytes"], found["objects"]) == (int(0.001 * 2**30) // 2, 0)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--to", "1GB", "--to-percent", "5"],
        ["--to", "much"],
        ["--to", "1iB"],
        ["--to", "-1"],
        ["--to-percent", "101"],
    ],
)
def test_prune_to_what(on, options, path_of):
    """CT-12: a missing, doubled or impossible target is wrong input."""
    assert on("prune", *options).exit_code == 2
    assert path_of(name_of(2)).exists()


def test_clear_asks(on, path_of):
    """CT-12: without --yes, only a yes removes anything."""
    refused = on("clear", stdin="n\n")
    assert refused.exit_code == 1
    assert "Remove 4 objects" in refused.stderr
    assert path_of(name_of(0)).exists()

    assert on("clear", stdin="y\n").stdout == "removed 4 objects\n"
    assert not path_of(name_of(0)).exists()


def test_clear_one_model(on, path_of):
    """CT-12: other models' objects stay."""
    assert printed(on("clear", "--model", "b0", "--yes", "--json")) == {"objects": 1}
    assert path_of(name_of(0)).exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EPIPE])
def test_disk_that_fails(on, monkeypatch, code):
    """CT-12: an error of the disk is a sentence; a reader that has gone is none."""

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(ColdStoreHandle, "prune", fail)
    done = on("prune", "--to", "0")

    assert done.exit_code == 1
    assert (os.strerror(code) in done.stderr) == (code == errno.ENOSPC)


# -- a prompt ------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def written(tmp_path_factory, checkpoint):
    """Return a folder with the store that a model has written."""
    folder = tmp_path_factory.mktemp("written")
    with neve.load(
        checkpoint,
        paged_cache_memory_mb=64,
        persist_paged_cache=True,
        cold_cache_dir=str(folder),
        cold_min_free_gb=0,
    ) as model:
        model.generate(STORY, max_tokens=1)
        model.generate([{"role": "user", "content": STORY}], max_tokens=1, cache_salt="s")
    return folder


@pytest.fixture
def ask(run, written, checkpoint):
    """Run a subcommand on a prompt and a model."""

    def invoke(command, *rest, stdin=None):
        options = ("--model", checkpoint, "--dir", str(written))
        return run("cache", command, *options, *rest, stdin=stdin)

    return invoke


@pytest.mark.mlx
def test_explain(ask):
    """CT-12: the blocks that an engine wrote would hit, found without loading it."""
    found = printed(ask("explain", STORY, "--json"))

    assert found["blocks"] > 5
    assert found["ranges"] == [{"first": 0, "end": found["blocks"], "present": True}]
    assert (found["restorable_blocks"], found["cause"]) == (found["blocks"], None)


@pytest.mark.mlx
def test_explain_first_miss(ask):
    """CT-12: the first miss is named, for people too; the prompt may come from stdin."""
    done = ask("explain", stdin=STORY[: len(STORY) // 2] + "But then, all at once, it ended!\n")

    assert done.exit_code == 0
    assert "would come back" in done.stdout
    assert "(no_continuation)" in done.stdout


@pytest.mark.mlx
@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--salt", "s"], "salt"),
        (["--salt", "s", "--chat"], None),
        (["--chat"], "no_block"),
        (["--chat", "--system", "Be brief."], "no_block"),
        (["--set", "dtype=bfloat16"], "other_models"),
        (["--set", "paged_block_size=8"], "other_models"),
    ],
)
def test_explain_causes(ask, options, cause):
    """CT-12: salt, chat template and settings decide as they do in an engine."""
    assert printed(ask("explain", STORY, "--json", *options))["cause"] == cause


@pytest.mark.mlx
@pytest.mark.parametrize(
    "options",
    [
        [STORY, "--salt", "x" * 257],
        [STORY, "--system", "Be brief."],
        [STORY, "--set", "dtype=int3"],
        [STORY, "--set", "blok_size=3"],
        [""],
    ],
)
def test_explain_wrong_input(ask, options):
    """CT-12: wrong input is a sentence and exit code 2."""
    done = ask("explain", *options)

    assert (done.exit_code, done.stdout) == (2, "")


@pytest.mark.mlx
def test_weights_are_read_once(ask, monkeypatch):
    """CT-12: the digest of the weights is remembered beside the objects."""
    assert ask("explain", STORY).exit_code == 0
    monkeypatch.setattr("neve.checkpoint.identity._read_in_full", None)

    assert ask("explain", STORY).exit_code == 0


@pytest.mark.mlx
def test_export_and_import(ask, run, tmp_path, checkpoint):
    """CT-12: a prefix goes to another store as one file, and is a hit there."""
    bundle, target = str(tmp_path / "prefix.tar"), str(tmp_path / "target")
    exported = printed(ask("export", bundle, STORY, "--json"))
    imported = printed(run("cache", "import", bundle, "--dir", target, "--json"))
    again = run("cache", "import", bundle, "--dir", target)
    explained = run("cache", "explain", STORY, "--model", checkpoint, "--dir", target, "--json")

    assert imported["num_written"] == exported["num_objects"] > 5
    assert imported["refusal"] is None
    assert again.stdout == f"0 new objects, 0 B; {imported['num_written']} were there\n"
    assert printed(explained)["cause"] is None


@pytest.mark.mlx
def test_export_of_nothing(ask, tmp_path):
    """CT-12: a prompt that is not there makes no file."""
    done = ask("export", str(tmp_path / "x.tar"), "Another prompt altogether.")

    assert done.exit_code == 1
    assert "no block of this prompt" in done.stderr
    assert not (tmp_path / "x.tar").exists()


def test_export_of_a_model(on, run, tmp_path):
    """CT-12: all objects of a model, without its checkpoint; what is unsound stays behind."""
    bundle = tmp_path / "model.tar"
    done = on("export", str(bundle), "--model-prefix", "a1")

    assert done.exit_code == 0
    assert done.stdout.startswith("3 objects, ")
    assert "3 new objects" in run("cache", "import", str(bundle)).stdout


def test_export_leaves_out_what_is_unsound(on, path_of, tmp_path):
    """CT-12: a damaged object is left out, and that is said."""
    damage(path_of(name_of(1)))
    done = on("export", str(tmp_path / "x.tar"), "--model-prefix", "a1")

    assert done.stdout.startswith("2 objects, ")
    assert "left out, since gone or unsound: 1 object" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["new.tar"],
        ["new.tar", "--model", "m", "--model-prefix", "a1"],
        ["new.tar", "prompt", "--model-prefix", "a1"],
        ["new.tar", "--model-prefix", "c0"],
        ["old.tar", "--model-prefix", "a1"],
    ],
)
def test_export_wrong_input(on, options, tmp_path, monkeypatch):
    """CT-12: an unclear choice, and a file that exists, are wrong input."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.tar").write_text("precious")

    assert on("export", *options).exit_code == 2
    assert not (tmp_path / "new.tar").exists()
    assert (tmp_path / "old.tar").read_text() == "precious"


def test_import_beyond_the_quota(on, run, tmp_path, monkeypatch):
    """CT-12: what the quota does not allow is left out; the exit code is 1."""
    on("export", str(tmp_path / "x.tar"), "--model-prefix", "a1")
    monkeypatch.setenv("MLX_COLD_QUOTA_GB", str(2 * BLOCK.max_bytes / 2**30))
    done = run("cache", "import", str(tmp_path / "x.tar"))

    assert done.exit_code == 1
    assert done.stdout.startswith("2 new objects")
    assert "1 object left out: quota" in done.stderr


def test_import_of_anything_else(run, tmp_path):
    """CT-12: a file that is no bundle is refused with a sentence."""
    (tmp_path / "x.tar").write_text("no tar")
    done = run("cache", "import", str(tmp_path / "x.tar"))

    assert (done.exit_code, done.stdout) == (1, "")
    assert "the file is no bundle" in done.stderr
    assert run("cache", "import", str(tmp_path / "y.tar")).exit_code == 2


# -- a real process ------------------------------------------------------------------------


def test_while_another_process_uses_the_store(folder, path_of):
    """CT-12: a command in another process works on a store that is in use."""
    arguments = ["cache", "prune", "--to", "0", "--json", "--dir", str(folder)]
    with cold_store(folder) as store:
        done = subprocess.run(
            [sys.executable, "-m", "neve.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        left = store.objects(), store.verify().num_objects

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["objects"] == 4
    assert left[1] == 0
    assert not path_of(name_of(0)).exists()


# -- how figures look ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("7b", 7), ("10GB", 10**10), ("500 mb", 5 * 10**8), ("1.5GiB", 3 << 29)],
)
def test_sizes_are_read(text, num_bytes):
    """CT-12: sizes have units, decimal or binary."""
    context = click.Context(cache)

    assert parse_size(context, click.Option(["--to"]), text) == num_bytes


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (1 << 42, "4096.0 GiB"),
    ],
)
def test_sizes_are_written(num_bytes, text):
    """CT-12: sizes are written for people."""
    assert size_text(num_bytes) == text


def test_times_of_a_wrong_clock():
    """CT-12: a time that no calendar has is none."""
    assert time_text(2**63) == "2262-04-11T23:47:16Z"
    assert time_text(2**80) is None
