"""The statistics of a fleet: functions from arrays of numbers to numbers. No frames, no names, nothing stored."""
