"""Cold objects: their names, model fingerprints and bytes."""
