"""What holds for every test of the core."""

from hypothesis import settings

# a busy machine is no fault of the code: time is never a criterion
settings.register_profile("neve", deadline=None)
settings.load_profile("neve")
