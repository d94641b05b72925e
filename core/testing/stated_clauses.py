"""Clauses about a family's statements; no model is computed."""

from __future__ import annotations

import copy
import subprocess
import sys

from ..catalogue import ENTRY_POINT_GROUP
from ..contract.cache_spec import CacheLayout
from ..contract.plan import HOOKSPEC_VERSION, ColdEligibility, ExecutionPlan, OutputProtocol
from ..contract.sidecar import SidecarPolicy
from ..errors import ConfigError
from . import config_probe as probe
from .subject import Subject

IMPORTS_MLX = f"""
import sys
from importlib.metadata import entry_points
from neve.catalogue import discover
for point in entry_points(group={ENTRY_POINT_GROUP!r}):
    before = "mlx.core" in sys.modules
    if sys.argv[1] in discover([point]).families:
        print("mlx.core" in sys.modules and not before)
"""


class StatedClauses:
    """Info, config, layout and cold restore."""

    def test_info(self, subject: Subject) -> None:
        """FW-2: a family names its model types, under this hook specification."""
        info = subject.family.info
        protocol = subject.family.output_protocol(subject.family.parse_config(subject.config))

        assert info.hookspec_version == HOOKSPEC_VERSION
        assert subject.config["model_type"] in info.model_types
        assert info.name.strip()
        assert info.distribution.strip()
        assert isinstance(protocol, OutputProtocol)

    def test_info_imports_no_mlx(self, subject: Subject) -> None:
        """FW-2: listing families costs no import of MLX."""
        done = subprocess.run(  # noqa: S603  our own interpreter and text
            [sys.executable, "-c", IMPORTS_MLX, subject.family.name],
            capture_output=True,
            text=True,
            check=True,
        )

        assert done.stdout.split() == ["False"]

    def test_config_round_trip(self, subject: Subject) -> None:
        """FW-2: parsing changes no input, keeps no reference, and gives equal configs."""
        raw = copy.deepcopy(dict(subject.config))
        config = subject.family.parse_config(raw)

        assert raw == subject.config
        probe.wipe(raw)
        assert config == subject.family.parse_config(subject.config)

    def test_config_keys(self, subject: Subject) -> None:
        """FA: a needed key is named when missing or mistyped; null counts as missing."""
        family, raw = subject.family, subject.config
        config, needed = family.parse_config(raw), 0
        for path in probe.key_paths(raw):
            missing = probe.outcome(family, probe.without(raw, path))
            null = probe.outcome(family, probe.replaced(raw, path, None))
            assert probe.refuses(missing, path) == probe.refuses(null, path), path
            assert probe.refuses(null, path) or null == missing, path
            needed += isinstance(missing, probe.Refusal) and missing.kind is ConfigError

            wrong = probe.mistyped(probe.value_at(raw, path))
            found = probe.outcome(family, probe.replaced(raw, path, wrong))
            assert probe.refuses(found, path) or found == config, (path, wrong)

        assert needed > 0

    def test_config_numbers(self, subject: Subject) -> None:
        """FA: a number at its edge is a ConfigError with its key, or a usable config."""
        family, raw = subject.family, subject.config
        config = family.parse_config(raw)
        for path in probe.number_paths(raw):
            for number in probe.EDGES:
                found = probe.outcome(family, probe.with_number(raw, path, number))
                case = (path, number, found)
                if isinstance(found, probe.Refusal):
                    assert probe.refuses(found, path), case
                elif found != config:
                    assert probe.is_described(family, found), case

    def test_layout(self, subject: Subject) -> None:
        """GR-1: the cache layout is valid, with one route a layer."""
        family = subject.family
        config = family.parse_config(subject.config)
        layout, shape = family.declare_cache_groups(config), family.model_shape(config)

        assert isinstance(layout, CacheLayout)
        assert layout.num_layers == shape.num_layers
        assert min(shape.vocab_size, shape.max_context) > 0
        assert isinstance(family.execution_plan(config), ExecutionPlan)

    def test_cold_restore_statement(self, subject: Subject) -> None:
        """CT-1: a family states whether its prefixes may be restored from disk, and why."""
        family, config = subject.family, subject.family.parse_config(subject.config)
        policy = family.build_sidecar_policy(config, "float32")

        for asked in (None, config):
            eligibility = family.cold_restore_eligibility(asked)
            assert isinstance(eligibility, ColdEligibility)
            assert eligibility.reason.strip()
        assert policy is None or isinstance(policy, SidecarPolicy)
