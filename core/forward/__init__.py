"""The forward context, over block-paged pools and over contiguous caches."""
