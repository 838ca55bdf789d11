"""The page SQL: a console that reads the store and nothing else. What a query may use is limited in `processes`."""
