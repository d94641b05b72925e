"""The conformance suite, and what tests of plugins need."""
