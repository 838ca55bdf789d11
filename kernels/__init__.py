"""Work of known size for a GPU: launches, FLOP and byte counts, result checks. Nothing is measured or stored here."""
