"""Transfer between memory and disk: walks along a chain, reads, captures, writes."""
