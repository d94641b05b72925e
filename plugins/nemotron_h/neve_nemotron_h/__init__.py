"""The Nemotron-H family for neve."""
