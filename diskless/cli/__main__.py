"""`python -m diskless.cli`."""

from diskless.cli.edge import main

if __name__ == "__main__":
    main()
