"""Which families may persist prefixes: the list and the evidence of a gate."""
