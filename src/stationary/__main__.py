"""``stationary`` and ``python -m stationary``: the command line, or what it lacks in one line."""

import sys


def main() -> None:
    try:
        from stationary.lab.cli import app as cli

        cli.main()
    except ImportError as error:  # a command imports what it needs when it runs
        sys.exit(str(error))


if __name__ == "__main__":
    main()
