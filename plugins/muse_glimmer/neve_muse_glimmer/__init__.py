"""The Muse-Glimmer family for neve."""
