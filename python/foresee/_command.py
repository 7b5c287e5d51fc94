"""The `foresee` command of the installed package."""

import signal
import sys


def main() -> int:
    # Ctrl-C ends the command as it ends any other: Python's handler would only take note of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from . import _native

    again = [sys.executable, "-m", "foresee._command"]
    return _native.run_command(again, ["foresee", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
