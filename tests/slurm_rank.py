"""One rank of a job under srun (tests/frame/test_cluster.py): writes what it got, and its statistics, into a folder.

python slurm_rank.py FOLDER_OF_SAMPLES FOLDER_OF_RESULTS ASSIGNMENT TIER_BYTES
"""

import hashlib
import json
import sys
from pathlib import Path

import foresee

samples, results, assignment, tier_bytes = sys.argv[1:]
paths = sorted(Path(samples).iterdir())
config = {
    "staging": {"capacity": "1 MiB"},
    "tier": [{"kind": "memory", "capacity": int(tier_bytes)}],
    "catalog": {"path": ""},
}
dataset = foresee.Files(paths, config=config)
steps: list[list[list]] = []
with foresee.Job(dataset, 8, 3, seed=5, assignment=assignment, config=config) as job:
    for batch in job:
        real = zip(batch.indices, batch.data, batch.mask, strict=True)
        steps.append([[int(index), hashlib.sha256(data).hexdigest()] for index, data, is_real in real if is_real])
stats = job.stats()
Path(results, f"rank{stats['rank']}.json").write_text(json.dumps({"steps": steps, "stats": stats}))
