"""A fleet that is not there: the physics of simulated GPUs, their spread and their faults."""
