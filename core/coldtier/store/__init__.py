"""Objects on disk within their limits: folder, index, quota, eviction."""
