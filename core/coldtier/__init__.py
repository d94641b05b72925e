"""The cold tier: prefixes that outlive their process, as files on the SSD.

This room knows bytes, keys and boundaries, and neither arrays nor families.
"""
