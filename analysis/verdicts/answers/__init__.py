"""Answers that rest on the judge: a GPU explained, fingerprints, what changed, what to probe next, what a node is."""
