"""The scheduler: chooses the requests and tokens of each step."""
