"""The page SQL: a console that reads the store and nothing else. What it may use is limited in `store/console`."""
