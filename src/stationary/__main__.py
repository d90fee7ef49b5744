"""``stationary`` and ``python -m stationary``: the command line, or what it lacks in one line."""

import sys


def main() -> None:
    try:
        from stationary.lab.cli import app as cli
    except ImportError as error:
        sys.exit(str(error))
    cli.main()


if __name__ == "__main__":
    main()
