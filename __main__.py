"""`python -m whorl` is `whorl`."""

from .cli import main

if __name__ == "__main__":
    main()
