"""The command behind tools/cluster.sh: up, run, show, down."""

from __future__ import annotations

import argparse
import os
import signal
import sys

import cluster
import network

HOSTS_MAX = 64


def hosts(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= HOSTS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: give a number of hosts from 1 to {HOSTS_MAX}")
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/cluster.sh", description="A cluster in a box")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make it")
    up.add_argument("hosts", type=hosts, metavar="HOSTS")
    up.add_argument("--mbit", type=int, default=400, help="of the line of the shared storage")
    up.add_argument("--host-mbit", type=int, default=1000, help="of the line of each host")
    run = commands.add_parser("run", help="run a command on its head")
    run.add_argument("line", nargs=argparse.REMAINDER, metavar="COMMAND")
    commands.add_parser("show", help="where things are")
    commands.add_parser("down", help="take all of it away")
    return parser.parse_args()


def show(found: cluster.Cluster) -> None:
    print(f"shared storage  {found.shared}   on every host, and from here {found.head.view(found.shared)}")
    print(f"disk of a host  {found.local}   another one on every host; a job's part is SLURM_TMPDIR")
    print(f"slurm.conf      {found.conf}")
    for host in [found.head, *found.hosts]:
        print(f"{host.what:<6} {host.address:<12} {host.name}")


def main() -> None:
    args = arguments()
    # What was begun is undone.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if (lacking := cluster.missing()) is not None:
        sys.exit(f"cluster: {lacking}")
    try:
        if args.command == "up":
            show(cluster.Cluster.up(args.hosts, args.mbit, args.host_mbit))
        elif args.command == "down":
            cluster.down()
        elif args.command == "show":
            show(cluster.Cluster.found())
        elif not args.line:
            sys.exit("cluster: run what? Give a command, as in: tools/cluster.sh run srun -N 2 hostname")
        else:
            line = cluster.Cluster.found().command(args.line)
            os.execvpe(line[0], line, cluster.environment())
    except network.SetupError as error:
        sys.exit(f"cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
