from __future__ import annotations

import hashlib

import mlx.core as mx
import numpy as np
import pytest
from safetensors import safe_open

from neve.coldtier.objects.format import encode
from neve.coldtier.objects.geometry import KvGeometry, encode_tokens, kv_layout, sidecar_layout
from neve.coldtier.objects.header import ObjectLayout, TensorSpec
from neve.coldtier.objects.keys import ColdGroup, ObjectName
from neve.contract.cache_spec import FullAttention, SlidingWindow, layer_routes
from neve.contract.page_format import PageFormat, Plane, keys_and_values
from neve.contract.sidecar import SidecarLayout, SidecarTensor
from neve.ids import ColdKey, Fingerprint

KEY = ColdKey(bytes(range(32)))
FINGERPRINT = Fingerprint(bytes(range(32, 64)))
TOKENS = (0, 1, 65536, 2**32 - 1)
GDN = SidecarLayout(
    2,
    [
        SidecarTensor("conv", (1, 3, 10), "float16"),
        SidecarTensor("recurrent", (1, 2, 4, 4), "float32"),
    ],
)


def write(path, name: ObjectName, layout: ObjectLayout, payload) -> None:
    path.write_bytes(b"".join(encode(name, FINGERPRINT, layout, payload)))


@pytest.mark.parametrize(("dtype", "array"), [("F32", np.float32), ("F16", np.float16)])
def test_a_block_is_a_safetensors_file(tmp_path, dtype, array) -> None:
    """CT-3: any safetensors reader finds the tokens, and each layer's keys and values."""
    layout = kv_layout(KvGeometry(4, 2, keys_and_values(2, 8, 6), dtype))
    rng = np.random.default_rng(0)
    pages = [rng.normal(size=(2, 4, d)).astype(array) for d in (8, 6, 8, 6)]
    write(tmp_path / "x", ObjectName(KEY), layout, [encode_tokens(TOKENS), *pages])

    with safe_open(tmp_path / "x", "numpy") as file:
        assert file.get_tensor("tokens").tolist() == list(TOKENS)
        names = ["layer.0.key", "layer.0.value", "layer.1.key", "layer.1.value"]
        for name, page in zip(names, pages, strict=True):
            np.testing.assert_array_equal(file.get_tensor(name), page, strict=True)
        assert sorted(file.keys()) == [*names, "tokens"]


def test_a_bfloat16_block_comes_back_through_mlx(tmp_path) -> None:
    """CT-3: bf16 pages, which NumPy lacks, are what MLX loads from the file."""
    layout = kv_layout(KvGeometry(4, 1, keys_and_values(2, 8, 8), "BF16"))
    pages = [mx.arange(64).reshape(2, 4, 8).astype(mx.bfloat16) + i for i in range(2)]
    views = [memoryview(page) for page in pages]  # pyright: ignore[reportArgumentType]
    path = tmp_path / "x.safetensors"
    write(path, ObjectName(KEY), layout, [encode_tokens(TOKENS), *views])

    loaded = mx.load(str(path))

    assert isinstance(loaded, dict)
    assert loaded["layer.0.key"].dtype == mx.bfloat16
    assert mx.array_equal(loaded["layer.0.key"], pages[0])
    assert mx.array_equal(loaded["layer.0.value"], pages[1])


def test_the_metadata_of_a_block(tmp_path) -> None:
    """CT-3: the file names itself, its model and its geometry in strings."""
    layout = kv_layout(KvGeometry(4, 1, keys_and_values(2, 8, 6), "F32"))
    payload = [bytes(tensor.num_bytes) for tensor in layout.tensors]
    write(tmp_path / "x", ObjectName(KEY), layout, payload)

    with safe_open(tmp_path / "x", "numpy") as file:
        metadata = file.metadata()
    checksum = metadata.pop("checksum")

    assert len(bytes.fromhex(checksum)) == 32
    assert metadata == {
        "abi": "neve-cold-v1",
        "group": "kv",
        "key": KEY.hex(),
        "fingerprint": FINGERPRINT.hex(),
        "after": "00" * 32,
        "block_size": "4",
        "num_layers": "1",
        "kv_heads": "2",
        "head_dim": "8",
        "v_head_dim": "6",
        "dtype": "F32",
    }


def test_the_bytes_of_a_known_block_stay() -> None:
    """CT-3: a file that an earlier release wrote is the file that this one expects."""
    layout = kv_layout(KvGeometry(4, 2, keys_and_values(2, 8, 6), "F16"))
    payload = [bytes(tensor.num_bytes) for tensor in layout.tensors]
    file = b"".join(encode(ObjectName(KEY), FINGERPRINT, layout, payload))

    assert hashlib.sha256(file).hexdigest() == (
        "bab2a383b6f5d152fcaef525b719f1184c72fc291444bcf35b5fc731b13f8bbb"
    )


def test_a_block_has_a_tensor_a_plane(tmp_path) -> None:
    """CT-3: another format of pages is another file; a plane may insist on its dtype."""
    page = PageFormat([Plane("keys", 1, 4), Plane("scales", 2, 1, "float32")])
    layout = kv_layout(KvGeometry(4, 2, page, "F16"))
    payload = [bytes(tensor.num_bytes) for tensor in layout.tensors]
    write(tmp_path / "x", ObjectName(KEY), layout, payload)

    with safe_open(tmp_path / "x", "numpy") as file:
        shapes = {
            name: (tensor.dtype, tensor.shape)
            for name in file.keys()  # noqa: SIM118
            for tensor in [file.get_tensor(name)]
        }
        assert file.metadata()["planes"] == "keys:1x4 scales:2x1"
    for layer in range(2):
        assert shapes[f"layer.{layer}.key"] == (np.float16, (1, 4, 4))
        assert shapes[f"layer.{layer}.scales"] == (np.float32, (2, 4, 1))


def test_the_geometry_of_a_model_is_that_of_its_full_attention() -> None:
    """CT-3: blocks of the group that keeps every position are written."""
    window, full = SlidingWindow(64, 1, 32), FullAttention(2, 8, v_head_dim=6)
    layout = layer_routes([window, full, full])
    geometry = KvGeometry.of(layout, 16, "bfloat16")

    assert geometry == KvGeometry(16, 2, keys_and_values(2, 8, 6), "BF16")
    assert kv_layout(geometry).tensors[1:] == (
        TensorSpec("layer.0.key", "BF16", (2, 16, 8)),
        TensorSpec("layer.0.value", "BF16", (2, 16, 6)),
        TensorSpec("layer.1.key", "BF16", (2, 16, 8)),
        TensorSpec("layer.1.value", "BF16", (2, 16, 6)),
    )
    block_bytes = sum(tensor.num_bytes for tensor in kv_layout(geometry).tensors[1:])
    assert block_bytes == layout.block_bytes(1, 16, 2)


def test_a_sidecar_is_a_safetensors_file(tmp_path) -> None:
    """SD-3: state of two kinds comes back in its own shapes and dtypes."""
    layout = sidecar_layout(ColdGroup.GDN_STATE, GDN, 1392)
    conv = np.arange(30, dtype=np.float16).reshape(1, 3, 10)
    recurrent = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    payload = [conv, recurrent, conv + 1, recurrent + 1]
    write(tmp_path / "x", ObjectName(KEY, ColdGroup.GDN_STATE), layout, payload)

    with safe_open(tmp_path / "x", "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()

    np.testing.assert_array_equal(tensors["layer.0.conv"], conv, strict=True)
    np.testing.assert_array_equal(tensors["layer.1.recurrent"], recurrent + 1, strict=True)
    assert (metadata["group"], metadata["boundary_tokens"]) == ("gdn_state", "1392")


def test_boundaries_have_layouts_of_their_own() -> None:
    """SD-2: equal state at another boundary, or of another group, is another layout."""
    layouts = [
        sidecar_layout(ColdGroup.GDN_STATE, GDN, 16),
        sidecar_layout(ColdGroup.GDN_STATE, GDN, 32),
        sidecar_layout(ColdGroup.SSM_STATE, GDN, 16),
    ]

    assert len(set(layouts)) == 3
    assert {layout.payload_bytes for layout in layouts} == {GDN.num_bytes}


@pytest.mark.parametrize(("group", "boundary"), [(ColdGroup.KV, 16), (ColdGroup.GDN_STATE, 0)])
def test_what_is_no_sidecar(group: ColdGroup, boundary: int) -> None:
    """SD-2: a sidecar belongs to a sidecar's group and a positive boundary."""
    with pytest.raises(ValueError, match="is no boundary of"):
        sidecar_layout(group, GDN, boundary)


@pytest.mark.parametrize("dtype", ["U32", "bfloat16", ""])
def test_a_cache_dtype_is_known(dtype: str) -> None:
    """CT-3: a geometry in a type that no pool has is refused."""
    with pytest.raises(ValueError, match="dtype"):
        KvGeometry(16, 1, keys_and_values(1, 64, 64), dtype)
