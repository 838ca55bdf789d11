"""The readers of `formats.py`: one file for each tool."""
