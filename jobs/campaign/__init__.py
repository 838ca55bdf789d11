"""A campaign over every GPU of a cluster through its batch system: one job for each node, until all are covered."""
