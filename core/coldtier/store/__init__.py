"""Objects on disk within their limits: folder, index, quota and eviction."""
