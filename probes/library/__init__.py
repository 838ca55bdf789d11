"""One probe a file; `catalogue.PROBES` names them."""
