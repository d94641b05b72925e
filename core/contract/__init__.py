"""The contract between the core and the families: hooks, cache layouts, steps."""
