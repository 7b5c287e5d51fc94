"""A rank as mpirun starts it: joins its input and output to the test's socket, and becomes rank.py, perhaps under strace."""

import os
import socket
import sys
from pathlib import Path

folder, *prefix = sys.argv[1:]
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["PMI_RANK"]
line = socket.socket(socket.AF_UNIX)
line.connect(f"{folder}/ranks.sock")
line.sendall(f"{rank} {os.getpid()}\n".encode())
os.dup2(line.fileno(), 0)
os.dup2(line.fileno(), 1)
log = ["-o", f"{folder}/strace{rank}"] if prefix else []
rank_file = str(Path(__file__).with_name("rank.py"))
command = [*prefix, *log, sys.executable, "-B", rank_file, f"{folder}/told{rank}.json"]
os.execvp(command[0], command)
