"""What can be read from a GPU, and the loop that reads it."""
