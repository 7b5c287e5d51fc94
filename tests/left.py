"""Whatever a network of bench/network.py left behind, seen without it."""

from pathlib import Path


def left_behind(name: str) -> list[str]:
    """Namespaces, folders, memory groups, mounts and processes of a network. Each process of it has its name in its
    environment."""
    places = [*Path("/run/netns").glob(f"{name}-*"), Path("/tmp") / name, *Path("/sys/fs/cgroup").rglob(f"{name}-*")]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    return [*(str(place) for place in places if place.exists()), *mounts, *processes(name)]


def processes(name: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"FORESEE_NETWORK={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            # It has ended meanwhile.
            continue
    return found
