"""Admission of families to the cold tier: the allowlist, and evidence of a passed gate."""
