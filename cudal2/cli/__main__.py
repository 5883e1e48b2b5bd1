"""`python -m cudal2.cli`."""

import sys

from cudal2.cli import main

if __name__ == "__main__":
    sys.exit(main())
