"""The cold tier: prefixes that outlive their process, as files on the SSD.

This room handles bytes, keys and boundaries, and imports neither arrays nor families.
"""
