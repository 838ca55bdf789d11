"""`whorl dashboard`: pages over a store in a browser.

`make` puts the pages together, `pages` lists them, `serving` serves them. A page is layout and callbacks: what it shows
is read in `reading`, worked out in `analysis` and drawn in `dashboards/figures`. `state` says what an address means.
"""
