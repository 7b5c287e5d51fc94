"""What was read of files, by the kernel's account."""

import re
from collections import Counter
from pathlib import Path

#: The calls that read a file.
READS = "read,readv,pread64"

#: A read as strace -y shows it, on one line or on two.
READ = re.compile(r"^(\d+) +(?:read|readv|pread64)\(\d+<([^>]*)>.*= (\d+)$")
BEGUN = re.compile(r"^(\d+) +(?:read|readv|pread64)\(\d+<([^>]*)>.*<unfinished \.\.\.>$")
RESUMED = re.compile(r"^(\d+) +<\.\.\. (?:read|readv|pread64) resumed>.*= (\d+)$")


def strace(calls: str = READS) -> tuple[str, ...]:
    """What strace is run by to write down these calls, but for where it writes to."""
    return ("strace", "-f", "-y", "-s", "0", "-e", f"trace={calls}")


def read_bytes(log: Path, names: str = r"\.bin$") -> Counter[str]:
    """Bytes that were read of each file whose path has `names` in it, by all processes of one log of strace."""
    total: Counter[str] = Counter()
    begun: dict[str, str] = {}
    for text in log.read_text().splitlines():
        if whole := READ.match(text):
            total[whole[2]] += int(whole[3])
        elif first := BEGUN.match(text):
            begun[first[1]] = first[2]
        elif (rest := RESUMED.match(text)) and rest[1] in begun:
            total[begun.pop(rest[1])] += int(rest[2])
    return Counter({path: count for path, count in total.items() if re.search(names, path)})
