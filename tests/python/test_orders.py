"""What a job delivers, and in which order: as torch does, each sample once, byte for byte, also after a resume."""

import functools
import hashlib
import itertools
import json
import pickle
import random
import struct
from pathlib import Path

import foresee
import pytest
from made import content

ROOT = Path(__file__).resolve().parents[2]
# Made by the real thing; crates/core's tests say more.
VECTORS = json.loads((ROOT / "crates/core/tests/data/torch_order.json").read_text())["cases"]


def named(case: dict) -> str:
    return "-".join(str(case[key]) for key in ("samples", "world_size", "rank", "epoch", "drop_last", "shuffle"))


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    """Call it with a number of samples; all are one file: the order is about numbers."""
    path = tmp_path_factory.mktemp("one") / "sample"
    path.write_bytes(b"x")
    return functools.cache(lambda samples: foresee.Files([path] * samples))


@pytest.mark.parametrize("case", VECTORS, ids=named)
def test_a_job_delivers_what_torch_delivers(case, one_file):
    job = foresee.Job(
        one_file(case["samples"]),
        batch_size=7 if case["samples"] < 10_000 else 256,
        epochs=case["epoch"] + 1,
        seed=case["seed"],
        shuffle=case["shuffle"],
        tail="drop" if case["drop_last"] else "pad",
        rank=case["rank"],
        world_size=case["world_size"],
    )
    with job:
        indices = [index for batch in job.epoch(case["epoch"]) for index in batch.indices]
    assert len(indices) == case["length"]
    assert indices[: len(case["first"])] == case["first"]
    assert indices[-len(case["last"]) :] == case["last"]
    packed = struct.pack(f"<{len(indices)}Q", *indices)
    assert hashlib.sha256(packed).hexdigest() == case["sha256_le_u64"]


@pytest.mark.parametrize("world_size", range(1, 9))
def test_every_sample_comes_once_an_epoch_over_all_ranks(files, tmp_path, world_size):
    draw = random.Random(world_size)
    samples = draw.randrange(40, 90)
    dataset = files(samples)
    total = sum(dataset.sizes)
    for percent in (0, 30, 100, 150):
        capacity = total * percent // 100
        tiers = [{"kind": "memory", "capacity": capacity // 2}]
        seen = [set() for _ in range(3)]
        for rank in range(world_size):
            disk = {"kind": "disk", "capacity": capacity // 2, "path": str(tmp_path / f"{percent}-{rank}")}
            config = {
                "staging": {"capacity": draw.randrange(400, 4000), "threads": draw.randrange(1, 6)},
                "tier": [*tiers, {**disk, "free_space_floor": 0}],
            }
            shuffle = "torch" if percent % 100 else "feistel"
            options = {"seed": 9, "tail": "exact", "shuffle": shuffle, "config": config}
            job = foresee.Job(dataset, 5, 3, rank=rank, world_size=world_size, **options)
            with job:
                for batch in job:
                    for data, index, label, real in zip(
                        batch.data, batch.indices, batch.labels, batch.mask, strict=True
                    ):
                        assert real and label == 3 * index
                        assert bytes(data) == content(index)
                        assert index not in seen[batch.epoch]
                        seen[batch.epoch].add(index)
        assert seen == [set(range(samples))] * 3


def global_batches(dataset, world_size, batch_size, state=None, most=None):
    """Each step's samples of all ranks, and the state of the first after `most` steps."""
    steps, states = {}, []
    for rank in range(world_size):
        job = foresee.Job(dataset, batch_size, 3, seed=5, tail="exact", rank=rank, world_size=world_size)
        with job:
            if state:
                job.load_state_dict(state)
            for batch in itertools.islice(job, most):
                steps.setdefault((batch.epoch, batch.step), []).extend(batch.indices)
            states.append(job.state_dict())
    return {step: sorted(samples) for step, samples in steps.items()}, states[0]


@pytest.mark.parametrize("worlds", [(1, 1, 12), (2, 2, 6), (2, 3, 4), (4, 1, 12)])
def test_a_resumed_job_goes_on_with_the_very_next_batch(files, worlds):
    before, after, batch_size = worlds
    dataset = files(50)
    whole, _ = global_batches(dataset, before, 12 // before)
    first, state = global_batches(dataset, before, 12 // before, most=7)
    state = json.loads(json.dumps(state))
    rest, _ = global_batches(dataset, after, batch_size, state)
    assert not first.keys() & rest.keys()
    assert first | rest == whole


def test_a_job_that_was_read_sample_by_sample_resumes_between_samples(files):
    dataset = files(20)
    with foresee.Job(dataset, 8, 1, shuffle=False) as job:
        assert [job.get()[1] for _ in range(3)] == [0, 3, 6]
        state = job.state_dict()
        assert next(job).indices == [3, 4, 5, 6, 7]
    with foresee.Job(dataset, 8, 1, shuffle=False) as job:
        job.load_state_dict(state)
        assert next(job).indices == [3, 4, 5, 6, 7]
        assert next(job).indices == list(range(8, 16))


def test_get_hands_over_all_samples_and_then_none(files):
    with foresee.Job(files(20), 8, 2, shuffle="sequential") as job:
        got = list(iter(job.get, None))
        assert [label for _, label in got] == [3 * sample for sample in range(20)] * 2
        assert all(bytes(data) == content(label // 3) for data, label in got)
        assert job.get() is None


def test_orders_can_be_given_as_lists(files):
    dataset = files(10)
    lists = [[3, 1, 2], [9, 9, 0]]
    assert [batch.indices.tolist() for batch in foresee.Job(dataset, 3, 2, shuffle=lists)] == lists
    one = foresee.Job(dataset, 2, 2, shuffle=[5, 6, 7])
    assert [batch.indices.tolist() for batch in one] == [[5, 6], [7]] * 2


def test_numpy_arrays_are_orders_too(files):
    np = pytest.importorskip("numpy")
    order = np.array([[2, 0, 1], [1, 2, 0]])
    job = foresee.Job(files(3), np.int64(3), 2, shuffle=order)
    assert [batch.indices.tolist() for batch in job] == order.tolist()


def test_the_padded_tail_is_marked(files):
    jobs = [foresee.Job(files(10), 2, 1, shuffle=False, rank=rank, world_size=4) for rank in range(4)]
    masks = [[real for batch in job for real in batch.mask] for job in jobs]
    assert masks == [[True] * 3, [True] * 3, [True, True, False], [True, True, False]]


def test_lengths_and_places(files):
    with foresee.Job(files(20), 8, 3) as job:
        assert (len(job), job.steps_per_epoch, len(job.epoch(1)), job.position) == (9, 3, 3, (0, 0))
        next(job)
        assert (len(job), job.position) == (9, (0, 1))
        assert [(batch.epoch, batch.step, len(batch)) for batch in job.epoch(0)] == [(0, 1, 8), (0, 2, 4)]
        assert [(batch.epoch, batch.step) for batch in job.epoch(2)] == [(2, step) for step in range(3)]
        assert list(job) == []
        with pytest.raises(foresee.ConfigError, match="epoch=1: the job stands in epoch 3, and never goes back"):
            job.epoch(1)


def test_a_whole_job_fits_a_list(files):
    job = foresee.Job(files(30), 4, 3, config={"staging": {"capacity": 1000}})
    batches = list(job)
    assert len(batches) == len(job)
    for batch in batches:
        assert [bytes(data) for data in batch.data] == [content(index) for index in batch.indices]


def test_a_made_seed_is_told_and_gives_the_same_order(files):
    dataset = files(30)
    job = foresee.Job(dataset, 30, 1, seed=None)
    assert job.seed != foresee.Job(dataset, 30, 1, seed=None).seed
    assert next(job).indices == next(foresee.Job(dataset, 30, 1, seed=job.seed)).indices


@pytest.mark.parametrize("policy", foresee.POLICIES)
def test_all_policies_deliver_the_same(files, policy):
    dataset = files(40)
    # LBANN's data store has all of the dataset in memory, or does not run.
    part = 1 if policy.startswith("lbann") else 2
    config = {"tier": [{"kind": "memory", "capacity": sum(dataset.sizes) // part}]}
    job = foresee.Job(dataset, 7, 2, seed=3, policy=policy, config=config)
    plain = foresee.Job(dataset, 7, 2, seed=3, policy="naive")
    # What is dealt by holder comes in another order within its batch.
    order = sorted if policy == "locality-aware" else list
    assert [order(batch.indices) for batch in job] == [order(batch.indices) for batch in plain]


def test_a_job_with_one_list_for_all_epochs_can_be_pickled(files):
    with foresee.Job(files(8), 2, 3, shuffle=[3, 1, 2, 0]) as job:
        next(job)
        with pickle.loads(pickle.dumps(job)) as copy:
            assert [batch.indices.tolist() for batch in copy] == [[2, 0], [3, 1], [2, 0], [3, 1], [2, 0]]


def test_a_list_of_its_own_is_all_of_a_ranks(files):
    for rank, order in enumerate([[3, 1, 2, 0], [7, 7, 4]]):
        options = {"shuffle": order, "assignment": "own", "rank": rank, "world_size": 2}
        with foresee.Job(files(8), 2, 2, **options) as job:
            assert [sample for batch in job for sample in batch.indices] == [*order, *order]
            assert job.rank == job.stats()["rank"] == rank and job.world_size == 2
    with pytest.raises(ValueError, match="assignment='own'"):
        foresee.Job(files(8), 2, 1, assignment="own")
