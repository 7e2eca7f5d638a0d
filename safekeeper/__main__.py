"""`python -m safekeeper` is `safekeeper`."""

from safekeeper.cli import main

if __name__ == "__main__":
    main()
