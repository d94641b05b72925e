"""Building blocks of models, shared by families."""
