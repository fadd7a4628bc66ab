"""`python -m diskless`: the command line."""

from diskless.cli.edge import main

if __name__ == "__main__":
    main()
