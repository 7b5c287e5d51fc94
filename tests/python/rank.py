"""One rank of a job of tests/python/many.py: takes its batches, compares each sample with its file, and writes what it got."""

import hashlib
import json
import sys
import time
from pathlib import Path

import foresee

told = json.loads(Path(sys.argv[1]).read_text())
digests = (
    [hashlib.sha256(Path(path).read_bytes()).digest() for path in told["paths"]] if told.get("check", True) else []
)
options = told["job"]
rank_options = told.get("by_rank", {}).get(str(foresee._launch.find_rank(None, None)[0]), {})
result: dict = {"epochs": [[] for _ in range(min(options["epochs"], 1000))], "wrong": [], "steps": []}
result |= {"waits_s": [], "fetched": [], "balance": []}
job = foresee.Job(foresee.Files(told["paths"]), **options)
if state := told.get("state"):
    job.load_state_dict(state)
batches = iter(job)
while True:
    began_s = time.monotonic()
    batch = next(batches, None)
    result["waits_s"].append(time.monotonic() - began_s)
    if batch is None:
        break
    for data, index in zip(batch.data, batch.indices, strict=True):
        if digests and hashlib.sha256(data).digest() != digests[index]:
            result["wrong"].append(int(index))
    stats = job.stats()
    origins = stats["origins"]
    if balance := stats["balance"]:
        result["balance"].append((time.monotonic(), balance["ranks"], balance["threads"]))
    fetched = sum(origins[peer]["samples"] for peer in ("peer", "host_peer") if peer in origins)
    result["fetched"].append((time.monotonic(), fetched))
    real = [int(index) for index, is_real in zip(batch.indices, batch.mask, strict=True) if is_real]
    result["epochs"][batch.epoch] += real
    result["steps"].append(real)
    time.sleep(rank_options.get("compute_s", 0))
    print(flush=True)
    if not sys.stdin.readline():
        break
    if len(result["steps"]) == told.get("stop_after"):
        result["state"] = job.state_dict()
        break
result["waited_s"] = max(result["waits_s"])
job.close()
result["stats"] = job.stats()
result["summary"] = job.summary()
Path(told["result"]).write_text(json.dumps(result))
