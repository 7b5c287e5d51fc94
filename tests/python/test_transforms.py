"""Decoded batches: one array, in place, the same whatever the threads and ranks; transforms with torchvision's parameters."""

import gc
import pickle
from pathlib import Path

import foresee
import pytest
from foresee import transforms as T

DATA = Path(__file__).resolve().parents[2] / "crates" / "image" / "tests" / "data"
NAMES = ["jpg_420.jpg", "jpg_grey.jpg", "jpg_progressive.jpg", "png_alpha.png", "png_palette.png", "webp_lossy.webp"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
STEPS = T.Compose([T.RandomResizedCrop((12, 10)), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])


def images(transform, count=24, **options):
    paths = [DATA / NAMES[number % len(NAMES)] for number in range(count)]
    return foresee.Files(paths, range(count), transform=transform, **options)


def decoded(dataset, batch_size, **options):
    """Bytes of every sample of two epochs."""
    with foresee.Job(dataset, batch_size, 2, seed=3, tail="exact", **options) as job:
        return {
            (batch.epoch, index): bytes(memoryview(batch.data[place]))
            for batch in job
            for place, index in enumerate(batch.indices)
        }


@pytest.mark.parametrize(
    ("last", "shape", "dtype", "format"),
    [
        ([], (4, 3, 12, 10), "uint8", "B"),
        ([T.ToTensor()], (4, 3, 12, 10), "float32", "f"),
        ([T.ToDtype("float16", scale=True), T.ToLayout("HWC")], (4, 12, 10, 3), "float16", "e"),
        ([T.Normalize(MEAN, STD)], (4, 3, 12, 10), "float32", "f"),
    ],
)
def test_a_batch_is_one_array_that_everyone_sees_in_place(last, shape, dtype, format):
    np = pytest.importorskip("numpy")
    with foresee.Job(images(T.Compose([T.Resize((12, 10)), *last])), 4, 1) as job:
        for batch in job:
            view = memoryview(batch.data)
            assert (batch.data.shape, view.shape, batch.data.dtype, view.format) == (shape, shape, dtype, format)
            assert view.readonly and view.c_contiguous and len(batch.data) == len(batch) == 4
            arrays = [np.asarray(batch.data), np.from_dlpack(batch.data), np.asarray(view)]
            assert all(array.shape == shape and array.dtype == np.dtype(dtype) for array in arrays)
            assert len({array.ctypes.data for array in arrays}) == 1
            assert len({array.tobytes() for array in arrays}) == 1
            assert np.asarray(batch.data[-1]).tobytes() == arrays[0][-1].tobytes()
            assert batch.labels == batch.indices


def test_numbers_are_pixels_scaled_and_normalised():
    np = pytest.importorskip("numpy")
    pixels, floats, normal = (
        np.asarray(next(foresee.Job(images(T.Compose([T.Resize((9, 9)), *more])), 6, 1, shuffle=False)).data)
        for more in ([], [T.ToTensor()], [T.ToTensor(), T.Normalize(MEAN, STD)])
    )
    assert np.array_equal(floats, pixels * np.float32(1 / 255))
    mean, std = (np.float32(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    assert np.abs(normal - (floats - mean) / std).max() < 1e-6


def test_augmentation_follows_from_seed_epoch_and_sample_alone():
    expected = decoded(images(STEPS), 4, threads=1)
    assert len(expected) == 48 and len(set(expected.values())) > 40
    assert decoded(images(STEPS), 7, threads=5, shuffle=False) == expected
    assert decoded(images(STEPS), 4, config={"tier": [{"kind": "memory", "capacity": "1 MiB"}]}) == expected
    ranks = [decoded(images(STEPS), 3, rank=rank, world_size=2) for rank in range(2)]
    assert ranks[0] | ranks[1] == expected


def test_a_resumed_job_gives_the_same_bytes():
    dataset = images(STEPS)
    job = foresee.Job(dataset, 5, 2, seed=3)
    next(job), next(job)
    state = job.state_dict()
    rest = [bytes(memoryview(batch.data)) for batch in job]
    other = foresee.Job(dataset, 5, 2, seed=3, threads=1)
    other.load_state_dict(state)
    assert [bytes(memoryview(batch.data)) for batch in other] == rest


def test_one_by_one_samples_are_images():
    with foresee.Job(images(STEPS), 4, 1, shuffle=False) as job:
        image, label = job.get()
        assert image.shape == (3, 12, 10) and label == 0 and len(bytes(memoryview(image))) == 3 * 12 * 10 * 4
        with pytest.raises(TypeError, match="an image has no items"):
            image[0]


def test_an_array_stays_valid_when_job_and_batch_are_gone_and_cannot_be_pickled():
    np = pytest.importorskip("numpy")
    job = foresee.Job(images(STEPS), 4, 1)
    batch = next(job)
    array, before = np.asarray(batch.data), bytes(memoryview(batch.data))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(batch.data)
    job.close()
    del job, batch
    gc.collect()
    assert array.tobytes() == before
    with pytest.raises(ValueError):
        array[0] = 1


def test_fortran_order_is_refused():
    import ctypes

    with foresee.Job(images(STEPS), 4, 1) as job:
        data = next(job).data
    view = (ctypes.c_byte * 256)()
    fill = ctypes.pythonapi.PyObject_GetBuffer
    fill.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    with pytest.raises(BufferError, match="C order"):
        fill(data, ctypes.addressof(view), 0x40 | 0x18)


def test_transforms_and_their_datasets_can_be_pickled_and_compared():
    again = pickle.loads(pickle.dumps(STEPS))
    assert again == STEPS and repr(again) == repr(STEPS) and again != T.Compose([T.Resize((2, 2))])
    dataset = pickle.loads(pickle.dumps(images(STEPS)))
    assert dataset.transform == STEPS and decoded(dataset, 4) == decoded(images(STEPS), 4)


def test_a_folder_with_a_relative_path_can_be_unpickled_in_another_folder(tmp_path, monkeypatch):
    (tmp_path / "here" / "class").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "here" / "class" / "one.png").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    dataset = foresee.ImageFolder("here")
    assert dataset.root == str(tmp_path / "here")
    saved = pickle.dumps(dataset)
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = pickle.loads(saved)
    assert again.paths() == dataset.paths() == [str(tmp_path / "here" / "class" / "one.png")]


def test_defaults_are_those_of_torchvision():
    crop = T.RandomResizedCrop(224)
    assert (crop.size, crop.scale, crop.ratio) == ((224, 224), (0.08, 1.0), (3 / 4, 4 / 3))
    assert T.Resize(256).size == 256 and T.Resize([2, 3]).size == (2, 3) and T.RandomHorizontalFlip().p == 0.5
    assert T.CenterCrop([7]).size == (7, 7)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: T.Resize(3, interpolation="nearest"), "interpolation='nearest': only bilinear"),
        (lambda: T.Resize(3, antialias=False), "antialias=False: only True"),
        (lambda: T.Resize((3, 4), max_size=5), "max_size=5: only with one number"),
        (lambda: T.Resize((3, 4, 5)), "size="),
        (lambda: T.CenterCrop(0), "size=0: give at least 1"),
        (lambda: T.ToDtype("int32"), "dtype='int32': not known"),
        (lambda: T.ToLayout("CWH"), "layout='CWH': not known"),
        (lambda: T.Normalize((0.5,), (0.5,)), "mean=(0.5,): give 3 numbers"),
        (lambda: images(T.RandomHorizontalFlip()), "the size of the result depends on the image"),
        (lambda: images(T.RandomResizedCrop(8, scale=(1.0, 0.5))), "transform 0 (RandomResizedCrop): scale"),
        (lambda: images(T.Compose([T.CenterCrop(8), T.Normalize(MEAN, STD), T.ToDtype("uint8")])), "floating-point"),
        (lambda: images(T.Compose([T.CenterCrop(8), T.RandomHorizontalFlip(2)])), "probability 2"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(make, said):
    with pytest.raises(foresee.ConfigError) as raised:
        make()
    assert said in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("wrong", [lambda image: image, "Resize", [T.CenterCrop(4)]])
def test_what_is_no_transform_is_refused(wrong):
    with pytest.raises(foresee.ArgumentTypeError, match=r"foresee\.transforms"):
        images(wrong)


def test_whatever_is_listed_is_decoded_as_by_pil(tmp_path):
    np = pytest.importorskip("numpy")
    Image = pytest.importorskip("PIL.Image")
    image = Image.fromarray(np.random.default_rng(1).integers(0, 256, (12, 10, 3), np.uint8))
    (tmp_path / "class").mkdir()
    for name in ("a.jpg", "b.jpeg", "c.png", "d.ppm", "e.bmp", "f.tif", "g.TIFF", "h.webp"):
        image.save(tmp_path / "class" / name)
    image.convert("L").save(tmp_path / "class" / "i.pgm", "PPM")
    # What a file holds need not be what its name says.
    image.save(tmp_path / "class" / "j.jpg", "GIF")
    expected = [np.asarray(Image.open(path).convert("RGB")) for path in sorted((tmp_path / "class").iterdir())]
    dataset = foresee.ImageFolder(tmp_path, transform=T.Compose([T.CenterCrop((12, 10)), T.ToLayout("HWC")]))
    with foresee.Job(dataset, 10, 1, shuffle=False) as job:
        assert np.array_equal(np.asarray(next(job).data), expected)


def test_what_is_no_image_is_named(tmp_path):
    path = tmp_path / "text.jpg"
    path.write_bytes(b"no image at all")
    with foresee.Job(foresee.Files([path], transform=STEPS), 1, 1) as job, pytest.raises(foresee.SampleError) as raised:
        next(job)
    assert raised.value.sample == 0 and str(path) in str(raised.value) and "none of JPEG, PNG" in str(raised.value)


@pytest.mark.parametrize("marker", [0x55, 0xC0, 0xDA])
def test_an_image_whose_data_end_in_the_middle_is_named(tmp_path, marker):
    path = tmp_path / "cut.jpg"
    data = (DATA / "jpg_420.jpg").read_bytes()
    begin = data.index(b"\xff\xda")
    middle = begin + (len(data) - begin) // 2
    # Only such a pair of bytes is a marker; PIL and torchvision refuse it, too.
    path.write_bytes(data[:middle] + bytes([0xFF, marker]) + data[middle:])
    whole = T.Compose([T.Resize(16), T.CenterCrop(16)])
    with foresee.Job(foresee.Files([path], transform=whole), 1, 1) as job, pytest.raises(foresee.SampleError) as raised:
        next(job)
    assert f"JPEG: data end at a marker 0x{marker:02x}" in str(raised.value)
