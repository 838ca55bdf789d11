"""The page GPU: one GPU in full.

`asked` says which GPU an address means and reads what is known of it, `chooser` is the search, `sections` shows the
parts, each in a callback of its own.
"""
