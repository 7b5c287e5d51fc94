"""Several jobs at a time on one cache folder, some of them killed: nobody gets a wrong sample, nobody loses what it uses, and no
part of the folder holds more than its capacity."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import PACKAGE
from made import content
from test_warm import held_in

HERE = Path(__file__).parent
SIZE, SAMPLES = 20_000, 120
#: Kills; more of them by this variable, as 50 takes half a minute.
KILLS = int(os.environ.get("FORESEE_TEST_KILLS", "10"))


class Jobs:
    def __init__(self, folder: Path):
        self.folder = folder
        self.cache = folder / "cache"
        self.paths = []
        (folder / "dataset").mkdir()
        for sample in range(SAMPLES):
            path = folder / "dataset" / f"{sample:05}.bin"
            path.write_bytes(content(sample, SIZE))
            self.paths.append(str(path))

    def start(self, name: str, *, seed: int, percent: int, policy: str = "foresee", epochs: int = 100_000):
        tier = {
            "kind": "disk",
            "capacity": SIZE * SAMPLES * percent // 100,
            "path": str(self.cache),
            "free_space_floor": 0,
        }
        config = {"staging": {"capacity": "1 MiB"}, "tier": [tier]}
        told = self.folder / f"{name}.json"
        job = {"batch_size": 8, "epochs": epochs, "policy": policy, "config": config}
        told.write_text(
            json.dumps({"paths": self.paths, "size": SIZE, "job": job, "stop": str(self.folder / f"stop-{name}")})
        )
        return subprocess.Popen(
            [sys.executable, "-B", str(HERE / "alone.py"), str(told), str(seed)],
            env={**os.environ, "PYTHONPATH": f"{PACKAGE}{os.pathsep}{HERE}"},
            stdout=subprocess.PIPE,
            text=True,
        )

    def verify(self) -> str:
        command = [sys.executable, "-B", "-m", "foresee._command", "cache", "verify", str(self.cache), "--json"]
        env = {**os.environ, "PYTHONPATH": str(PACKAGE)}
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout

    def slots(self):
        return sorted(path for path in self.cache.iterdir() if "-slot" in path.name)


def wait_for(job, line: str) -> None:
    for said in job.stdout:
        if said.strip() == line:
            return
    pytest.fail(f"the job ended with {job.wait()}")


def test_a_job_that_is_killed_again_and_again_costs_the_other_nothing(tmp_path):
    dice = random.Random(5)
    jobs = Jobs(tmp_path)
    capacity = {100: SIZE * SAMPLES, 60: SIZE * SAMPLES * 60 // 100}
    lasting = jobs.start("lasting", seed=1, percent=100)
    wait_for(lasting, "1")
    try:
        for kill in range(KILLS):
            # Samples come and go where not all of them fit.
            policy = dice.choice(["foresee", "lobster"])
            other = jobs.start("other", seed=kill, percent=60, policy=policy)
            if dice.random() < 0.7:
                wait_for(other, "0")
                time.sleep(dice.random() * 0.2)
            else:
                time.sleep(dice.random() * 0.4)
            assert other.poll() is None
            other.kill()
            assert "wrong" not in other.stdout.read()
            other.wait()
            assert lasting.poll() is None
            slots = jobs.slots()
            assert len(slots) <= 2
            for slot, most in zip(slots, (capacity[100], capacity[60]), strict=False):
                assert SIZE * len(held_in(slot / "index")) <= most
                assert sum(path.stat().st_size for path in slot.glob("data-*")) <= most
    finally:
        (tmp_path / "stop-lasting").touch()
        said = lasting.stdout.read().splitlines()
        code = lasting.wait(60)
    assert code == 0, said[-3:]
    stats = json.loads(said[-1])
    # All of its reads of the source were those of its first epoch, or of what it found too young to trust.
    assert stats["source_bytes"] == SIZE * SAMPLES
    assert stats["lost"] == 0
    # Nothing that was whole is gone, and nothing damaged, whoever was killed in the middle of it.
    first, *_ = jobs.slots()
    assert len(held_in(first / "index")) == SAMPLES
    verified = json.loads(jobs.verify())
    assert verified["whole"] and len(verified["parts"]) == 2
