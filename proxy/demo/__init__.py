"""A scripted upstream and search, for `toolproxy demo`, for tests and for load runs."""
