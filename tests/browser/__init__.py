"""A package, so that its fixtures end with its last test: other tests do not run beside a browser."""
