"""The page Fleet. `view` says what an address means, `page` draws and follows it, `sentences` are its words."""
