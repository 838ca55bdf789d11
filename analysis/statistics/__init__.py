"""The statistics of a fleet, numbers in and numbers out: no frames, no names, nothing stored."""
