"""How rows are read: what is there at one instant, SQL over it, and views for other DuckDB clients."""
