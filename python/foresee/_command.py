"""The `foresee` command of the installed package."""

import signal
import sys
from pathlib import Path


def main() -> int:
    # Ctrl-C ends the command as it ends any other: Python's handler would only take note of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from . import _native

    again = [sys.executable, "-m", "foresee._command"]
    # What `foresee run` preloads comes with the package.
    library = Path(__file__).with_name("libforesee_preload.so")
    return _native.run_command(again, str(library), ["foresee", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
