"""`neve demo`: what the engine does, act by act."""
