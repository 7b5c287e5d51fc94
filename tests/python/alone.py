"""One of several jobs at a time on one cache folder (test_shared_folder.py): compares each sample with what it must be, says each
epoch, and ends when it is told to, with its statistics on the last line."""

import json
import sys
from pathlib import Path

import foresee
from made import content

told = json.loads(Path(sys.argv[1]).read_text())
size, options = told["size"], told["job"]
options["seed"] = int(sys.argv[2])
job = foresee.Job(foresee.Files(told["paths"]), **options)
epoch = None
for batch in job:
    for data, index in zip(batch.data, batch.indices, strict=True):
        if bytes(data) != content(int(index), size):
            print(f"wrong sample {index}", flush=True)
            sys.exit(3)
    if batch.epoch != epoch:
        epoch = batch.epoch
        print(epoch, flush=True)
    if Path(told["stop"]).exists():
        break
stats = job.stats()
job.close()
print(json.dumps(stats), flush=True)
