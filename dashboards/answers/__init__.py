"""What whorl answers: one function for each verb that reads a store, and the reply that shows itself."""
