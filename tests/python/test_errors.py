"""Bad input ends in one clear line that names what, where and the remedy; nothing is lost by it."""

import errno
import json
import os
import pickle
import subprocess
import sys
import time
from types import SimpleNamespace

import foresee
import pytest
from made import content


def refused(call, kind=foresee.ConfigError) -> str:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, foresee.ForeseeError)
    said = str(caught.value)
    assert said and "\n" not in said
    return said


ARGUMENTS = [
    ({"batch_size": 0}, "batch_size=0: give at least 1"),
    ({"batch_size": 2**32}, "batch_size=4294967296: give at most 4294967295"),
    ({"epochs": 0}, "epochs=0: give at least 1"),
    ({"seed": -1}, "seed=-1: give at least 0"),
    ({"tail": "wag"}, "tail='wag': not known; give one of 'pad', 'drop', 'exact'"),
    ({"policy": "fast"}, "policy='fast': not known; give one of 'foresee', "),
    ({"policy": "perfect"}, "policy='perfect': not known"),
    ({"assignment": "x"}, "assignment='x': not known; give one of 'order', 'local'"),
    ({"on_error": "ignore"}, "on_error='ignore': not known; give one of 'raise', 'skip'"),
    ({"shuffle": "random"}, "shuffle='random': not known; give one of 'torch', 'feistel', 'sequential'"),
    ({"shuffle": []}, "shuffle=[]: give a list of samples for each epoch, or one for all epochs"),
    ({"shuffle": [0, 99]}, "names sample 99, but the catalog ends before 10"),
    ({"shuffle": [0, -1]}, "shuffle: item 1 of a list is -1; give numbers of samples, from 0"),
    ({"shuffle": [[0]], "epochs": 2}, "1 explicit orders were given for 2 epochs: give one for each"),
    ({"rank": 2, "world_size": 2}, "rank=2: world_size is 2; give 0 to 1"),
    ({"rank": 0}, "rank=0: give world_size too"),
    ({"world_size": 2}, "world_size=2: give rank too"),
    ({"rank": 0, "world_size": 0}, "world_size=0: give at least 1"),
    ({"seed": None, "rank": 0, "world_size": 2}, "seed=None: 2 ranks have nothing to agree on a seed by; give all"),
    ({"config": "/no/such.toml"}, "/no/such.toml: no such file; check the path"),
    ({"config": {"stagng": {}}}, "config: stagng: unknown key; did you mean staging?"),
    ({"config": {"staging": {"capacity": "lots"}}}, 'config: staging.capacity: "lots" is not a size; write a number'),
    ({"config": {"staging": {"capacity": "10 B"}}}, "give staging.capacity at least the size of the largest sample"),
    ({"config": {"tier": [{"kind": "memory", "capacity": "4096 TiB"}]}}, "lower their capacity"),
    ({"config": {"tier": [{"kind": "disk", "capacity": 1}]}}, "tier[0].path"),
    ({"config": {"staging": None}}, "config.staging: None is no value; leave the key out"),
    ({"config": {"staging": {"capacity": 2**63}}}, "config.staging.capacity: 9223372036854775808 is beyond 64 bits"),
    ({"config": {"tier": [{"kind": None}]}}, "config.tier[0].kind: None is no value; leave the key out"),
    ({"batch_size": 11, "drop_last": True}, "an epoch has no step"),
]

TYPES = [
    ({"batch_size": "8"}, "batch_size='8': give a whole number"),
    ({"batch_size": 8.0}, "batch_size=8.0: give a whole number"),
    ({"epochs": True}, "epochs=True: give a whole number"),
    ({"drop_last": 1}, "drop_last=1: give True or False"),
    ({"tail": None}, "tail=None: give one of 'pad', 'drop', 'exact'"),
    ({"shuffle": 3}, "shuffle=3: give one of 'torch', 'feistel', 'sequential', or lists of samples"),
    ({"shuffle": [[0], 3], "epochs": 2}, "shuffle[1]=3: give a list of samples"),
    ({"config": 3}, "config=3: give a path of a foresee.toml, a dict or None"),
    ({"config": {"staging": {"capacity": object}}}, "config.staging.capacity: a value of type type; give numbers"),
    ({"config": {1: 2}}, "config: the key 1 is no text; give keys as in foresee.toml"),
    ({"dataset": "/data"}, "dataset='/data': give a foresee.ImageFolder or foresee.Files"),
]


@pytest.mark.parametrize(("options", "expected"), ARGUMENTS, ids=str)
def test_a_value_that_is_not_possible(files, options, expected):
    given = {"dataset": files(10, size=50), "batch_size": 2, "epochs": 1, **options}
    assert expected in refused(lambda: foresee.Job(**given), ValueError)


@pytest.mark.parametrize(("options", "expected"), TYPES, ids=str)
def test_a_wrong_type(files, options, expected):
    given = {"dataset": files(10, size=50), "batch_size": 2, "epochs": 1, **options}
    assert expected in refused(lambda: foresee.Job(**given), TypeError)


@pytest.mark.parametrize("n_bytes", [-1, 2**64, "8", None, 1.5])
def test_a_charge_that_is_no_number_of_bytes(n_bytes):
    storage = foresee.emulate("errors", 100.0)
    said = refused(lambda: storage.charge(n_bytes), ValueError)
    assert said == f"n_bytes={n_bytes!r}: give a number of bytes, 0 or more"


def test_where_catalogs_are_saved_is_for_the_dataset_to_know(tmp_path, monkeypatch):
    monkeypatch.delenv("FORESEE_CATALOG_PATH")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    (tmp_path / "data" / "class").mkdir(parents=True)
    (tmp_path / "data" / "class" / "x.jpg").write_bytes(b"x")
    # What was changed a moment ago is not saved.
    time.sleep(2.5)
    catalogs = tmp_path / "catalogs"
    config = {"catalog": {"path": str(catalogs)}}
    dataset = foresee.ImageFolder(tmp_path / "data")
    said = refused(lambda: foresee.Job(dataset, 1, 1, config=config), foresee.ConfigError)
    assert said.startswith(
        f'config: catalog.path: "{catalogs}" comes too late, the dataset was listed with "{tmp_path}/user'
    )
    assert said.endswith("give the dataset this config, too: foresee.ImageFolder(..., config=...)")
    assert not catalogs.exists()
    dataset = foresee.ImageFolder(tmp_path / "data", config=config)
    assert len(list(catalogs.iterdir())) == 1
    for again in (dataset, pickle.loads(pickle.dumps(dataset)), foresee.Files(dataset.paths(), config=config)):
        with foresee.Job(again, 1, 1, config=config) as job:
            assert [bytes(data) for batch in job for data in batch.data] == [b"x"]
        foresee.Job(again, 1, 1).close()
    assert "config=3: give a path" in refused(lambda: foresee.ImageFolder(tmp_path / "data", config=3), TypeError)


def test_datasets_that_are_none(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "x.jpg").write_bytes(b"x")
    (tmp_path / "class" / "a").mkdir(parents=True)
    said = {
        name: refused(lambda name=name: foresee.ImageFolder(tmp_path / name), foresee.DatasetError)
        for name in ("none", "empty", "plain", "class", "plain/x.jpg")
    }
    assert "no such folder; check the path" in said["none"]
    assert "the folder is empty; check the path" in said["empty"]
    assert "no class folders in it; put the files of each class in a folder" in said["plain"]
    assert "class a: no file that ends in .jpg" in said["class"]
    assert "not a folder; give the folder that holds the class folders" in said["plain/x.jpg"]
    none = tmp_path / "none"
    assert "no such file" in refused(lambda: foresee.Files([none]), foresee.DatasetError)
    assert "the list is empty" in refused(lambda: foresee.Files([]), foresee.DatasetError)
    assert "2 labels for 1 paths" in refused(lambda: foresee.Files([none], [1, 2]), foresee.DatasetError)
    assert "paths='x': give a list of paths" in refused(lambda: foresee.Files("x"), TypeError)
    assert "paths[0]=3: give a path" in refused(lambda: foresee.Files([3]), TypeError)
    assert "labels[0]='a': give a whole number" in refused(lambda: foresee.Files([none], ["a"]), TypeError)
    assert "throttle=3: give what foresee.emulate returns" in refused(lambda: foresee.Files([], throttle=3), TypeError)
    assert "check the path" in refused(lambda: foresee.Files.from_manifest(none), foresee.DatasetError)


def test_storages_that_nothing_is_like():
    assert "mb_per_s=0 for 1 readers: give more than 0" in refused(lambda: foresee.emulate("x", 0))
    assert "mb_per_s={}" in refused(lambda: foresee.emulate("x", {}))
    assert "mb_per_s='fast'" in refused(lambda: foresee.emulate("x", "fast"), TypeError)
    assert "latency_ms=-1: give 0 or more" in refused(lambda: foresee.emulate("x", 1, -1))
    assert "the name must be" in refused(lambda: foresee.emulate("../x", 1))


def change(path, what):
    if what == "vanished":
        path.unlink()
    elif what == "shrank":
        path.write_bytes(b"x")
    elif what == "grew":
        path.write_bytes(b"x" * 51)
    elif what == "emptied":
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("vanished", "No such file or directory"),
        ("shrank", "the file shrank: 1 B of 50 B; start again, then the dataset is listed anew"),
        ("grew", "the file grew beyond 50 B; start again, then the dataset is listed anew"),
        ("emptied", "the file shrank: 0 B of 50 B; start again, then the dataset is listed anew"),
    ],
)
@pytest.mark.parametrize("policy", ["foresee", "naive"])
def test_a_sample_that_changed_is_named_and_the_job_goes_on_when_it_is_mended(folder, what, expected, policy):
    paths = folder(10, size=50)
    dataset = foresee.Files(paths)
    # Room for one batch, so that nothing is read ahead while it is held.
    config = {"staging": {"capacity": "192 B"}}
    with foresee.Job(dataset, 3, 1, shuffle=False, policy=policy, config=config) as job:
        first = next(job)
        assert first.indices == [0, 1, 2]
        change(paths[4], what)
        del first
        for _ in range(2):
            with pytest.raises(foresee.SampleError) as caught:
                next(job)
            assert (caught.value.sample, caught.value.path) == (4, str(paths[4]))
            said = str(caught.value)
            assert said.startswith(f"rank 0: sample 4 ({paths[4]}): ") and expected in said and "\n" not in said
        if what == "vanished":
            assert isinstance(caught.value.__cause__, FileNotFoundError)
            assert (caught.value.__cause__.errno, caught.value.__cause__.filename) == (errno.ENOENT, str(paths[4]))
        paths[4].write_bytes(content(4, 50))
        assert [bytes(sample) for sample in next(job).data] == [content(index, 50) for index in (3, 4, 5)]
        assert [batch.indices.tolist() for batch in job] == [[6, 7, 8], [9]]


@pytest.mark.parametrize("policy", ["foresee", "naive"])
def test_a_sample_that_cannot_be_read_can_be_skipped(folder, policy):
    paths = folder(10, size=50)
    dataset = foresee.Files(paths)
    paths[4].unlink()
    with foresee.Job(dataset, 10, 2, shuffle=False, on_error="skip", policy=policy) as job:
        for batch in job:
            assert batch.indices == [0, 1, 2, 3, 5, 5, 6, 7, 8, 9]
        assert job.stats()["skipped"] == 2


def disk(path):
    return {"tier": [{"kind": "disk", "capacity": "1 MB", "path": str(path), "free_space_floor": 0}]}


HOLD = """
import json, sys, foresee
job = foresee.Job(foresee.Files(sys.argv[2:]), 2, 1, config=json.loads(sys.argv[1]))
next(job)
"""


def test_a_cache_folder_that_another_process_uses_is_left_to_it(folder, script, tmp_path):
    paths, config = folder(10), disk(tmp_path / "cache")
    dataset = foresee.Files(paths)
    first = foresee.Job(dataset, 2, 1, config=config)
    next(first)
    ran = script(HOLD, json.dumps(config), *paths)
    assert ran.returncode == 0, ran.stderr
    said = ran.stderr.splitlines()[-1]
    assert str(tmp_path / "cache") in said and "another process uses" in said and "slot1 is taken" in said
    first.close()
    ran = script(HOLD, json.dumps(config), *paths)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_cache_folder_that_is_a_file_is_refused(files, tmp_path):
    (tmp_path / "cache").write_text("mine")
    job = foresee.Job(files(10), 2, 1, config=disk(tmp_path / "cache"))
    assert str(tmp_path / "cache") in refused(lambda: next(job), foresee.CacheError)
    assert (tmp_path / "cache").read_text() == "mine"


def test_states_of_other_jobs_are_refused(files):
    dataset = files(10)
    state = foresee.Job(dataset, 2, 1, seed=1).state_dict()
    job = foresee.Job(dataset, 2, 1, seed=2)
    assert "the state is of another job: seed was 1, and is 2 here" in refused(lambda: job.load_state_dict(state))
    assert "state: missing field" in refused(lambda: job.load_state_dict({}))
    assert "state=3: give what state_dict() returned" in refused(lambda: job.load_state_dict(3), TypeError)
    assert next(job).step == 0


ABSURD = [0, 7, 2**31, 2**32 - 1, 2**32, 2**70, -1, 0.5, float("nan"), None, "x", [], {}, b"x"]


def test_an_edited_state_is_refused_at_once_or_ends(files):
    job = foresee.Job(files(10), 2, 2, seed=1)
    next(job), job.get()
    state = job.state_dict()
    edited = [{**state, key: value} for key in state for value in ABSURD]
    edited += [{**state, "index": 0, "began_with": number, "global_batch": number} for number in (2**31, 2**32 - 1)]
    for one in edited:
        try:
            job.load_state_dict(one)
        except foresee.ForeseeError as wrong:
            key = next(key for key in state if one[key] is not state[key])
            assert "\n" not in str(wrong) and (key in str(wrong) or "the state is" in str(wrong)), str(wrong)
        else:
            assert sum(len(batch) for batch in job) <= 20


def test_a_state_that_began_with_more_ranks_than_there_are_is_refused(files):
    job = foresee.Job(files(10), 2, 2)
    said = refused(lambda: job.load_state_dict({**job.state_dict(), "began_with": 2**31}))
    assert said.startswith("state: began_with=2147483648 with global_batch=2, which no job can have saved; give what")


def test_a_closed_job_says_so(files):
    job = foresee.Job(files(10), 2, 1)
    next(job)
    job.close()
    job.close()
    assert refused(lambda: next(job), foresee.ForeseeError) == "the job is closed: make another one"
    assert refused(job.get, foresee.ForeseeError) == "the job is closed: make another one"
    assert refused(lambda: job.buffer, foresee.ForeseeError) == "the job is closed: make another one"
    assert job.stats()["policy"] == "foresee"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "9"}, (1, 3)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0"}, (2, 4)),
        ({"PMI_RANK": "3", "PMI_SIZE": "5"}, (3, 5)),
        ({"SLURM_PROCID": "4", "SLURM_NTASKS": "9", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "6"}, (4, 6)),
        ({"RANK": "1"}, (0, 1)),
    ],
)
def test_ranks_are_found_where_launchers_leave_them(variables, expected):
    from foresee import _launch

    assert _launch.find_rank(None, None, variables) == expected


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_LOCALID": "0"}, (1, 4)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, (2, 3)),
        ({"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}, (0, 2)),
        ({"PMIX_LOCAL_RANK": "0", "PMIX_LOCAL_SIZE": "1"}, (0, 1)),
        ({"LOCAL_RANK": "4", "LOCAL_WORLD_SIZE": "4"}, None),
        ({"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": "4"}, None),
        ({"LOCAL_RANK": "0"}, None),
    ],
)
def test_places_on_a_host_are_found_where_launchers_leave_them(variables, expected):
    from foresee import _launch

    assert _launch.find_place_on_host(variables) == expected


@pytest.mark.parametrize(
    ("host", "place", "expected"),
    [
        ("0", "3", (3, 4)),
        ("1", "0", (0, 4)),
        ("2", "2", (2, 3)),
        ("3", "0", (0, 1)),
        ("4", "0", None),
        ("x", "0", None),
    ],
)
def test_srun_tells_how_many_tasks_each_host_has(host, place, expected):
    from foresee import _launch

    step = {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3,1", "SLURM_NODEID": host, "SLURM_LOCALID": place}
    assert _launch.find_place_on_host({**step, "SLURM_STEP_NUM_TASKS": "12"}) == expected
    assert _launch.find_place_on_host(step) is None, "a batch script is not one of them"


#: As `sbatch -n4` leaves it for its script, 22.05 and 26.05: the second numbers the script as a step, too.
BATCH_SHELL = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
LATER_SHELL = {**BATCH_SHELL, "SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}
#: As `srun -n2` inside of it leaves it for its second task.
STEP = {**BATCH_SHELL, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}


@pytest.mark.parametrize("shell", [BATCH_SHELL, LATER_SHELL])
def test_a_batch_shell_of_slurm_is_a_world_of_one_and_says_so_once(shell, caplog, monkeypatch):
    from foresee import _launch

    monkeypatch.setattr(_launch, "_said", set())
    assert _launch.find_rank(None, None, shell) == _launch.find_rank(None, None, shell) == (0, 1)
    assert [one.getMessage() for one in caplog.records] == [
        "SLURM_NTASKS=4, but srun did not start this process: it is rank 0 of 1; srun starts all tasks"
    ]
    assert _launch.find_rank(None, None, STEP) == (1, 2)


def test_a_job_in_a_batch_shell_of_slurm_has_all_samples(files, monkeypatch):
    for name, value in BATCH_SHELL.items():
        monkeypatch.setenv(name, value)
    with foresee.Job(files(20), 2, 1) as job:
        assert sorted(index for batch in job for index in batch.indices) == list(range(20))


def test_launchers_that_disagree_are_named_in_one_line(caplog, monkeypatch):
    from foresee import _launch

    monkeypatch.setattr(_launch, "_said", set())
    # torchrun started four ranks in each of two tasks of srun: nothing to say.
    assert _launch.find_rank(None, None, {**STEP, "RANK": "5", "WORLD_SIZE": "8"}) == (5, 8)
    assert not caplog.records
    assert _launch.find_rank(None, None, {**STEP, "RANK": "0", "WORLD_SIZE": "1"}) == (0, 1)
    assert _launch.find_rank(None, None, {**STEP, "RANK": "0", "WORLD_SIZE": "2"}) == (0, 2)
    srun = "by SLURM_PROCID and SLURM_STEP_NUM_TASKS: the first holds; give rank and world_size if it is wrong"
    assert [one.getMessage() for one in caplog.records] == [
        f"rank 0 of 1 by RANK and WORLD_SIZE, 1 of 2 {srun}",
        f"rank 0 of 2 by RANK and WORLD_SIZE, 1 of 2 {srun}",
    ]


def test_ranks_of_launchers_are_checked():
    from foresee import _launch

    wrong = {"RANK": "x", "WORLD_SIZE": "2"}
    assert refused(lambda: _launch.find_rank(None, None, wrong)).startswith("RANK='x': not a whole number; unset it")
    wrong = {"RANK": "2", "WORLD_SIZE": "2"}
    assert refused(lambda: _launch.find_rank(None, None, wrong)) == "RANK=2: WORLD_SIZE is 2; give 0 to 1"


def test_ranks_of_a_launch_make_the_same_seed():
    from foresee import _launch

    launch = {"TORCHELASTIC_RUN_ID": "a", "MASTER_ADDR": "b", "MASTER_PORT": "1"}
    assert _launch.make_seed(2, launch) == _launch.make_seed(2, dict(launch))
    assert _launch.make_seed(2, launch) != _launch.make_seed(2, {**launch, "MASTER_PORT": "2"})


def test_an_initialised_torch_is_asked_for_ranks(monkeypatch):
    from foresee import _launch

    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 7
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    assert _launch.find_rank(None, None, {"RANK": "0", "WORLD_SIZE": "2"}) == (3, 7)
    assert _launch.find_rank(1, 2, {}) == (1, 2)


def test_no_permission_is_said(folder, script):
    # Root without privileges reads no more than others do.
    as_others = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    paths = folder(3)
    paths[1].chmod(0)
    code = "import sys, foresee; next(foresee.Job(foresee.Files(sys.argv[1:]), 3, 1))"
    (*_, line) = script(code, *paths, prefix=as_others).stderr.splitlines()
    assert "SampleError" in line and str(paths[1]) in line and "Permission denied" in line


def test_an_uncaught_error_ends_in_its_line(folder):
    code = "import foresee; foresee.Job(foresee.Files([__file__]), 0, 1)"
    ran = subprocess.run(
        [sys.executable, "-c", code.replace("__file__", "'/bin/sh'")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert ran.stderr.strip().endswith("ConfigError: batch_size=0: give at least 1")
