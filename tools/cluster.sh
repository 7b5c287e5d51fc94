#!/bin/sh
# A cluster in a box: hosts that are network namespaces of this machine, SLURM on them, a MooseFS as shared storage behind a
# slower line. As root.
#
#   tools/cluster.sh up HOSTS [--mbit 400] [--host-mbit 1000]    makes it; Mbit/s of the storage's line and of each host's
#   tools/cluster.sh run COMMAND...    a command on its head, in this folder: srun, sbatch, squeue, salloc ... mpirun
#   tools/cluster.sh show              where things are
#   tools/cluster.sh down              takes all of it away, also what was left of one whose making was killed
#
#   tools/cluster.sh run srun -N 2 -n 4 hostname
#   tools/cluster.sh run srun -N 2 -n 4 --mpi=pmix python3 train.py
#   tools/cluster.sh run salloc -N 2 -n 4 mpirun --allow-run-as-root --oversubscribe python3 train.py
#
# What it is made of is in bench/cluster.py and bench/network.py.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
command -v python3 >/dev/null || { echo "cluster: python3 is missing; install it with: apt-get install python3" >&2; exit 1; }
exec python3 -B "$root/bench/cluster_command.py" "$@"
