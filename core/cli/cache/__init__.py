"""`neve cache`: a store of prefixes, seen and cared for without a model."""
