"""Work of known size for a GPU: launches, FLOP and byte counts, result checks. It measures and stores nothing."""
