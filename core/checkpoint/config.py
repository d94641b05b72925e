"""Typed values of config.json; every error names the path of its key.

A family lists the keys that it reads in an attrs class, and gives each key's kind by the
functions below: `hidden_size: int = size()`. `contract.limits` has the limits of the kinds. An
integer without a kind is checked as a size; any other number without a kind as a real number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import attrs

from ..contract import limits
from ..contract.limits import Limits
from ..errors import ConfigError, SettingsError
from ..structuring import strict_converter, structure

T = TypeVar("T")

# A config.json has many keys that a family does not need.
_CONVERTER = strict_converter(forbid_extra_keys=False)
_ALIASES = "neve.aliases"


def _aliases(field: attrs.Attribute[Any] | None) -> tuple[str, ...]:
    return () if field is None else field.metadata.get(_ALIASES, ())


def number(default: Any = attrs.NOTHING, *, within: Limits, aliases: Sequence[str] = ()) -> Any:
    """Return the field of a number.

    Args:
        default: Value for a missing or null key; a key without default is required.
        within: The least and the greatest value.
        aliases: Other names of the key. If several are present, the first one wins, and every
            alias wins over the field's own name.
    """
    return attrs.field(default=default, validator=within, metadata=also_called(*aliases))


def also_called(*aliases: str) -> Mapping[str, Any]:
    """Return the `metadata` of an `attrs.field` whose key has other names; see `number`."""
    return {_ALIASES: aliases}


def size(default: Any = attrs.NOTHING, *, least: int = 1, aliases: Sequence[str] = ()) -> Any:
    """Return the field of a width or a count that becomes a dimension, from `least` on."""
    return number(default, within=Limits(least, limits.SIZE.most), aliases=aliases)


def count(default: Any = attrs.NOTHING, *, aliases: Sequence[str] = ()) -> Any:
    """Return the field of a count that may be zero."""
    return number(default, within=limits.COUNT, aliases=aliases)


def layers(default: Any = attrs.NOTHING) -> Any:
    """Return the field of a number of layers."""
    return number(default, within=limits.LAYERS)


def vocabulary(default: Any = attrs.NOTHING) -> Any:
    """Return the field of a number of token ids."""
    return number(default, within=limits.VOCABULARY)


def tokens(default: Any = attrs.NOTHING) -> Any:
    """Return the field of a context or a window, in tokens."""
    return number(default, within=limits.TOKENS)


def epsilon(default: Any = attrs.NOTHING) -> Any:
    """Return the field of the constant that a norm adds to a variance."""
    return number(default, within=limits.EPSILON)


def factor(default: Any = attrs.NOTHING) -> Any:
    """Return the field of a factor, or of the bound of a softcap: positive."""
    return number(default, within=limits.FACTOR)


def share(default: Any = attrs.NOTHING) -> Any:
    """Return the field of a share: above zero and at most one."""
    return number(default, within=limits.SHARE)


def rope_base(default: Any = attrs.NOTHING, *, aliases: Sequence[str] = ()) -> Any:
    """Return the field of the base of a rotary embedding."""
    return number(default, within=limits.ROPE_BASE, aliases=aliases)


@attrs.frozen(eq=False)
class Section:
    """An object in config.json with its path, so that errors can name a key's whole path.

    Attributes:
        keys: Keys of the object; a null value counts as missing.
        prefix: Path of the object with a trailing dot, empty for config.json itself.
        nested: Keys whose path begins with `text_config` instead of `prefix`.
    """

    keys: Mapping[str, Any]
    prefix: str = ""
    nested: frozenset[str] = frozenset()

    def key(self, name: str) -> str:
        """Return the path of a key."""
        return f"text_config.{name}" if name in self.nested else self.prefix + name

    def error(self, name: str, reason: str) -> ConfigError:
        """Return an error about a key."""
        return ConfigError(self.key(name), reason)

    def has(self, name: str) -> bool:
        """Return whether a key is present and not null."""
        return self.keys.get(name) is not None

    def read(self, cls: type[T]) -> T:
        """Return the keys of the fields of `cls`, typed.

        Raises:
            ConfigError: A key is missing, mistyped or out of range; the error names the first
                such key as the file spells it.
        """
        given, names = self._given(cls)
        try:
            value = structure(given, cls, _CONVERTER)
        except SettingsError as error:
            path, _, reason = error.findings[0].partition(": ")
            name, dot, rest = path.partition(".")
            others = _aliases(attrs.fields_dict(cls).get(name))
            if name not in names and others:
                reason += f" (as is {', '.join(others)})"
            raise self.error(names.get(name, name) + dot + rest, reason) from error
        self._check_kinds(value, names)
        return value

    def _given(self, cls: type[Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return values by field, and the name of the key of each value."""
        given: dict[str, Any] = {}
        names: dict[str, str] = {}
        for field in attrs.fields(cls):
            for name in (*_aliases(field), field.name):
                if self.has(name):
                    given[field.name], names[field.name] = self.keys[name], name
                    break
        return given, names

    def _check_kinds(self, value: Any, names: Mapping[str, str]) -> None:
        """Check numbers of fields without a kind against the limits of all numbers."""
        for field in attrs.fields(type(value)):
            found = getattr(value, field.name)
            unchecked = field.validator is None and not isinstance(found, bool)
            if unchecked and isinstance(found, int | float) and field.name in names:
                within = limits.SIZE if isinstance(found, int) else limits.REAL
                limits.read_number(found, within, self.key(names[field.name]))

    def at(self, name: str) -> Section:
        """Return the object under a key; an empty one if the key is missing.

        Raises:
            ConfigError: The value is no object.
        """
        found = self.keys.get(name)
        if found is None:
            found = {}
        if not isinstance(found, Mapping):
            raise self.error(name, f"must be an object, got {found!r}")
        return Section(found, f"{self.key(name)}.")

    def require_divisor(self, raw: Any, name: str, of: str) -> None:
        """Check that the value of one key divides the value of another.

        Raises:
            ConfigError: The value does not divide the other.
        """
        divisor, value = getattr(raw, name), getattr(raw, of)
        if value % divisor:
            raise self.error(name, f"must divide {of} = {value}, got {divisor}")

    def require_at_most(self, raw: Any, name: str, bound: str) -> None:
        """Check that the value of one key is at most the value of another.

        Raises:
            ConfigError: The value is greater.
        """
        value, most = getattr(raw, name), getattr(raw, bound)
        if value > most:
            raise self.error(name, f"must be at most {bound} = {most}, got {value}")

    def require_length(self, raw: Any, name: str, of: str) -> None:
        """Check that a list has as many elements as another key states.

        Raises:
            ConfigError: The list is longer or shorter.
        """
        length, right = len(getattr(raw, name)), getattr(raw, of)
        if length != right:
            raise self.error(name, f"must name {of} = {right} layers, got {length}")

    def head_dim(self, raw: Any, stated: int | None) -> int:
        """Return the width of a head: `stated`, or the hidden size divided by the heads.

        Raises:
            ConfigError: No width is stated, and the heads do not divide the hidden size.
        """
        if stated is not None:
            return stated
        self.require_divisor(raw, "num_attention_heads", "hidden_size")
        return raw.hidden_size // raw.num_attention_heads

    def kv_heads(self, raw: Any) -> int:
        """Return the number of key and value heads; by default that of query heads.

        Raises:
            ConfigError: The number does not divide the number of query heads.
        """
        if raw.num_key_value_heads is None:
            return raw.num_attention_heads
        self.require_divisor(raw, "num_key_value_heads", "num_attention_heads")
        return raw.num_key_value_heads


def text_section(raw: Mapping[str, Any]) -> Section:
    """Return the text model's keys: those of `text_config`, or of the whole config.

    Raises:
        ConfigError: `text_config` is no object.
    """
    whole = Section(raw)
    return whole.at("text_config") if whole.has("text_config") else whole


def merged_section(raw: Mapping[str, Any]) -> Section:
    """Return all keys; a key of `text_config` replaces the outer key of the same name.

    Raises:
        ConfigError: `text_config` is no object.
    """
    nested = Section(raw).at("text_config").keys
    own = {name: value for name, value in nested.items() if value is not None}
    return Section({**raw, **own}, nested=frozenset(own))


def read_config(raw: Mapping[str, Any], cls: type[T]) -> T:
    """Return the keys of the fields of `cls`, typed; a null value counts as missing.

    Raises:
        ConfigError: A key is missing, mistyped or out of range; the error names the first
            such key.
    """
    return Section(raw).read(cls)
