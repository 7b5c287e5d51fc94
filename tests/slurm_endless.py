"""One rank of a job that is ended from outside (tests/frame/test_cluster.py): keeps samples on its host's disk, and goes on.

python slurm_endless.py FOLDER_OF_SAMPLES FOLDER_OF_THE_CACHE FOLDER_OF_MARKS
"""

import sys
from pathlib import Path

import foresee

samples, cache, marks = map(Path, sys.argv[1:])
config = {
    "staging": {"capacity": "1 MiB"},
    "tier": [
        {"kind": "memory", "capacity": "400 kB"},
        # Less than all: samples come and go until the end.
        {"kind": "disk", "capacity": "1 MB", "path": str(cache), "free_space_floor": 0},
    ],
    "catalog": {"path": ""},
}
dataset = foresee.Files(sorted(samples.iterdir()), config=config)
job = foresee.Job(dataset, 8, 10_000, seed=5, config=config)
for batch in job:
    if batch.epoch == 1 and batch.step == 0:
        (marks / f"rank{job.rank}").touch()
