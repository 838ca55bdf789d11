"""Answers for people in a terminal: sentences and tables. The command line fits them to its width."""
