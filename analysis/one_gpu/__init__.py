"""One GPU in full: which is meant, what was found, its place in the fleet, its past, its clock, its runs and events.

Every part is a function of a store that reads what it needs of the GPU, and of its peers a sample or what was stored:
so it takes as long in a fleet of 27,648 GPUs as in a small one. Nothing is judged and nothing is stored.
"""
