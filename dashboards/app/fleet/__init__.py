"""The page Fleet: every GPU in one figure after another, linked by a brush; a table of all; the trend of the fleet.

`view` says what an address means, `parts` draws it, `linking` follows the mouse and the address.
"""
