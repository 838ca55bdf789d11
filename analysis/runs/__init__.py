"""The runs of a store as frames: which can be compared, with their figures, their conditions and their GPU's place."""
