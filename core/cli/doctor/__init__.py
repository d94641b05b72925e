"""`neve doctor`: whether machine, plugins and checkpoint will do."""
