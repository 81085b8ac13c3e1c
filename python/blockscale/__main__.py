"""`python -m blockscale`: the command line, which lies in the package."""

import os
import sys
from pathlib import Path


def main() -> None:
    """Replaces this process by the command line, with the same arguments."""
    program = Path(__file__).parent / "bin" / "blockscale"
    environment = dict(os.environ, BLOCKSCALE_PYTHON=sys.executable)
    os.execve(program, [str(program), *sys.argv[1:]], environment)


if __name__ == "__main__":
    main()
