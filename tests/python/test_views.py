"""Samples are views of the loader's memory: no copy, read-only, valid as long as anybody looks."""

import gc
import os
import pickle
import weakref

import foresee
import pytest
from made import content


def test_numpy_sees_samples_inside_the_staging_buffer(files):
    np = pytest.importorskip("numpy")
    with foresee.Job(files(30), 5, 1) as job:
        start, end = job.buffer.address, job.buffer.address + len(job.buffer)
        with pytest.raises(TypeError):
            memoryview(job.buffer)
        for batch in job:
            for data, index in zip(batch.data, batch.indices, strict=True):
                views = [np.frombuffer(data, np.uint8), np.asarray(data), np.from_dlpack(data)]
                places = {view.__array_interface__["data"][0] for view in views}
                assert len(places) == 1 and start <= places.pop() < end
                assert all(view.tobytes() == content(index) and not view.flags.writeable for view in views)


def test_a_sample_is_bytes_like(files):
    with foresee.Job(files(3), 3, 1, shuffle=False) as job:
        sample = next(job).data[2]
    view = memoryview(sample)
    assert (view.format, view.readonly, view.ndim, view.nbytes) == ("B", True, 1, len(sample))
    assert bytes(sample) == bytes(view) == b"".join([sample]) == content(2)
    with pytest.raises(TypeError):
        view[0] = 1


def test_views_stay_valid_when_batch_and_job_are_gone(files):
    np = pytest.importorskip("numpy")
    job = foresee.Job(files(60), 4, 3, config={"staging": {"capacity": 2000}})
    held = []
    for batch in job:
        index = batch.indices[0]
        held.append((index, memoryview(batch.data[0]), np.from_dlpack(batch.data[0])))
    job.close()
    del job, batch
    gc.collect()
    assert all(bytes(view) == tensor.tobytes() == content(index) for index, view, tensor in held)


def test_space_returns_when_the_last_view_dies(files):
    dataset = files(64, size=100)
    with foresee.Job(dataset, 1, 20, config={"staging": {"capacity": 6400}}) as job:
        for _ in job:
            pass
        assert job.stats()["outside"] == 0
    with foresee.Job(dataset, 1, 4, config={"staging": {"capacity": 6400}}) as job:
        held = [batch.data[0] for batch in job]
        assert len(held) == 256 and job.stats()["outside"] > 0


def test_a_capsule_that_nobody_takes_frees_its_sample(files):
    with foresee.Job(files(40, size=100), 1, 10, config={"staging": {"capacity": 1000}}) as job:
        for batch in job:
            batch.data[0].__dlpack__()
            batch.data[0].__dlpack__(max_version=(1, 0))
        del batch
        assert job.stats()["outside"] == 0


def test_dlpack_says_where_memory_is_and_copies_if_asked(files):
    np = pytest.importorskip("numpy")
    with foresee.Job(files(3), 3, 1) as job:
        batch = next(job)
    sample = batch.data[0]
    assert sample.__dlpack_device__() == batch.labels.__dlpack_device__() == (1, 0)
    copy = np.from_dlpack(sample, copy=True)
    assert copy.tobytes() == bytes(sample)
    assert copy.ctypes.data != np.asarray(sample).ctypes.data
    with pytest.raises(BufferError, match="ask for the CPU"):
        sample.__dlpack__(dl_device=(2, 0))


def test_numpy_sees_what_a_tier_keeps_in_place_and_dlpack_gives_a_copy(files):
    np = pytest.importorskip("numpy")
    config = {"tier": [{"kind": "memory", "capacity": "1 MB"}]}
    with foresee.Job(files(30), 5, 3, config=config) as job:
        for batch in job:
            for data, index in zip(batch.data, batch.indices, strict=True):
                assert bytes(data) == content(index)
                view, copy = np.asarray(data), np.from_dlpack(data)
                assert view.ctypes.data == np.frombuffer(data, np.uint8).ctypes.data != copy.ctypes.data
                assert copy.tobytes() == content(index) and not view.flags.writeable
                data.__dlpack__()
                with pytest.raises(BufferError, match="DLPack gives a copy of it"):
                    data.__dlpack__(copy=False)
                # Older versions of NumPy take all for read-only.
                if copy.flags.writeable:
                    copy[:] = 0


def test_data_is_a_sequence(files):
    with foresee.Job(files(10), 10, 1, shuffle=False) as job:
        data = next(job).data
    assert len(data) == 10 and len(data[2:5]) == 3
    assert bytes(data[-1]) == content(9)
    assert [bytes(sample) for sample in data[::-3]] == [content(index) for index in (9, 6, 3, 0)]
    assert [len(sample) for sample in data] == [len(content(index)) for index in range(10)]
    with pytest.raises(IndexError, match="10: there are 10 items"):
        data[10]
    with pytest.raises(TypeError, match="an index is a whole number or a slice"):
        data["a"]


def test_arrays_work_without_numpy_and_with_it(files):
    np = pytest.importorskip("numpy")
    with foresee.Job(files(6), 6, 1, shuffle=False) as job:
        batch = next(job)
    labels, mask = batch.labels, batch.mask
    assert labels == [0, 3, 6, 9, 12, 15] and list(labels) == labels.tolist() and labels == batch.labels
    assert labels[1] == 3 and labels[-1] == 15 and labels[1:3] == [3, 6] and labels != [1]
    assert (repr(labels[:2]), repr(mask[:1])) == ("Array([0, 3])", "Array([True])")
    assert (memoryview(labels).format, memoryview(mask).format) == ("q", "?")
    for array, kind in ((labels, np.int64), (mask, np.bool_), (batch.indices, np.int64)):
        views = [np.asarray(array), np.from_dlpack(array)]
        assert all(view.dtype == kind and view.tolist() == array.tolist() for view in views)
        assert views[0].ctypes.data == views[1].ctypes.data
        assert pickle.loads(pickle.dumps(array)) == array
        assert (array == views[0]).all()


def test_batches_and_samples_say_that_they_cannot_be_pickled(files):
    batch = next(foresee.Job(files(3), 3, 1))
    for thing in (batch, batch.data[0]):
        with pytest.raises(TypeError, match="cannot be pickled: send bytes"):
            pickle.dumps(thing)


def test_datasets_and_jobs_can_be_pickled(files, tmp_path):
    dataset = files(20)
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.paths(), again.labels) == (dataset.paths(), dataset.labels)
    job = foresee.Job(dataset, 4, 2, seed=None, config={"staging": {"capacity": 4000}})
    next(job)
    copy = pickle.loads(pickle.dumps(job))
    assert (copy.seed, copy.position) == (job.seed, (0, 1))
    assert [batch.indices for batch in copy] == [batch.indices for batch in job]
    throttle = pickle.loads(pickle.dumps(foresee.emulate(f"pickled-{tmp_path.name}", {1: 5, 4: 9.5}, 1)))
    assert (throttle.mb_per_s, throttle.latency_ms) == ({1: 5.0, 4: 9.5}, 1.0)


def test_a_job_goes_when_nobody_holds_it(files):
    job = foresee.Job(files(10), 2, 1)
    next(job)
    gone = weakref.ref(job)
    del job
    assert gone() is None


def test_image_folders_are_as_torchvision_has_them(tmp_path):
    for name in ("zebra/2.png", "zebra/10.jpg", "ant/b/c.JPEG", "ant/a.jpg", "ant/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    dataset = foresee.ImageFolder(tmp_path)
    assert (dataset.classes, dataset.class_to_idx) == (["ant", "zebra"], {"ant": 0, "zebra": 1})
    names = ["ant/a.jpg", "ant/b/c.JPEG", "zebra/10.jpg", "zebra/2.png"]
    assert dataset.paths() == [str(tmp_path / name) for name in names]
    assert (len(dataset), dataset.labels, dataset.path(-1)) == (4, [0, 0, 1, 1], str(tmp_path / names[-1]))
    assert pickle.loads(pickle.dumps(dataset)).paths() == dataset.paths()


def test_manifests_list_files_with_labels(folder, tmp_path):
    folder(3)
    manifest = tmp_path / "list.tsv"
    manifest.write_text("0002.bin\t7\n# no\n0000.bin\t-1\n")
    dataset = foresee.Files.from_manifest(manifest)
    assert (dataset.labels, dataset.path(0)) == ([7, -1], str(tmp_path / "0002.bin"))


def test_class_names_that_are_no_text_stay_apart_as_in_python(tmp_path, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("FORESEE_CATALOG_PATH", str(tmp_path_factory.mktemp("catalogs")))
    for name in (b"no\xfe", b"no\xff", b"\xf0\x9f\x98\x80", b"plain"):
        folder = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(folder)  # noqa: PTH102, a name of bytes
        with open(folder + b"/1.jpg", "wb") as file:  # noqa: PTH123, a name of bytes
            file.write(name)
    expected = sorted(entry.name for entry in os.scandir(tmp_path) if entry.is_dir())
    # Listed, then from the saved catalog.
    for _ in range(2):
        dataset = foresee.ImageFolder(tmp_path)
        assert dataset.classes == expected
        assert dataset.class_to_idx == {name: label for label, name in enumerate(expected)}
        with foresee.Job(dataset, 4, 1, shuffle=False) as job:
            batch = next(job)
            assert [bytes(data) for data in batch.data] == [os.fsencode(expected[label]) for label in batch.labels]
