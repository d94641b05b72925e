"""How the tiny checkpoints and their goldens are made; see ../README.md."""
