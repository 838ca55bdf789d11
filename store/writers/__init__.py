"""How rows come into a store: several tables at once, or from a journal that becomes Parquet."""
