"""The block-paged KV cache and its contiguous twin."""
