"""Why a GPU is slow: the state in which it ran, what held its clock, and what was seen of it without a test."""
