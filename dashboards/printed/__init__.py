"""Answers for people in a terminal: sentences and tables. How they are fitted to it is the command line's affair."""
