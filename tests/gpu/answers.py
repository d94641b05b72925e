"""Print a checkpoint's greedy answers as JSON: `python answers.py CHECKPOINT gpu|cpu`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from neve.metal.runtime import blas

if sys.argv[2] == "cpu":
    blas.preload()

import mlx.core as mx

import neve
from neve.metal.runtime import dispatch
from neve.testing.golden import read_goldens
from neve.testing.parity import at_once, tokens

checkpoint = Path(sys.argv[1])
mx.set_default_device(mx.cpu if sys.argv[2] == "cpu" else mx.gpu)
goldens = read_goldens(checkpoint)
prompts = {prompt.id: prompt for prompt in goldens.prompts} if goldens else {}
with neve.load(checkpoint, dtype="float32", paged_cache_memory_mb=256) as model:
    ids = [prompt.ids for prompt in prompts.values()]
    answers = dict(zip(prompts, tokens(at_once(model, ids, max_tokens=48)), strict=True))
json.dump({"answers": answers, "counts": dispatch.counts()}, sys.stdout)
