"""The conformance suite, and helpers for tests of plugins."""
