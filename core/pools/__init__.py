"""Arrays and tables on the device: pools of pages, recurrent states, contiguous caches."""
