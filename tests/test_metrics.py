"""A model's figures as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import neve

pytestmark = pytest.mark.mlx

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"


@pytest.fixture(scope="module")
def model():
    path = CHECKPOINTS / "muse_glimmer"
    with neve.load(path, dtype="float32", paged_cache_memory_mb=16) as model:
        model.generate(list(range(100, 300)), max_tokens=4, ignore_eos=True)
        yield model


def test_groups_bear_their_kind(model):
    """TE-4: a group's samples have its index and what its layers keep as labels."""
    found = re.findall(r"^neve_pool_num_blocks\{(.*)\} (\d+)$", model.metrics(), re.MULTILINE)
    source = f'model="{CHECKPOINTS / "muse_glimmer"}"'
    sizes = [group.num_blocks for group in model.stats().pools.groups]

    assert found == [
        (f'{source},group="0",kind="window 64"', str(sizes[0])),
        (f'{source},group="1",kind="full"', str(sizes[1])),
    ]


def test_stats_have_every_group(model):
    """GR-3: the figures tell a window's group from the one that keeps every position."""
    window, full = model.stats().pools.groups

    assert (window.kind, full.kind) == ("window 64", "full")
    assert window.num_live == full.num_live == 0
    assert full.num_evictable == 12


def test_the_flat_path_has_no_groups():
    """TE-4: without pools there is no sample of any."""
    with neve.load(
        CHECKPOINTS / "qwen3", use_block_paged_cache=False, paged_cache_memory_mb=8
    ) as model:
        assert model.stats().pools is None
        assert "neve_pool" not in model.metrics()
