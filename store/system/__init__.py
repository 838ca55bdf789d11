"""What a store needs of the operating system: files, locks, processes, signals, memory."""
