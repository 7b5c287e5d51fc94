"""JAX and TensorFlow take batches as docs/torch.md says; skipped where they are not installed."""

import gc

import foresee
import numpy
import pytest
from foresee import transforms as T

STEPS = T.Compose([T.Resize((8, 9)), T.ToTensor()])


@pytest.fixture
def expected(images):
    """Each batch of two epochs, as NumPy has it."""
    with foresee.Job(foresee.ImageFolder(images, transform=STEPS), batch_size=5, epochs=2) as job:
        return [(numpy.asarray(batch.data).copy(), numpy.asarray(batch.labels).copy()) for batch in job]


def test_jax_takes_batches_without_a_copy(images, expected):
    jax = pytest.importorskip("jax", reason="jax is not installed")
    held = []
    with foresee.Job(foresee.ImageFolder(images, transform=STEPS), batch_size=5, epochs=2) as job:
        start, size = job.buffer.address, len(job.buffer)
        for batch in job:
            data, labels = jax.numpy.from_dlpack(batch.data), jax.numpy.from_dlpack(batch.labels)
            assert start <= data.unsafe_buffer_pointer() < start + size
            held.append((data, labels, data.mean()))
    # Arrays keep what they show.
    del batch
    gc.collect()
    assert len(held) == len(expected)
    for (data, labels, mean), (images_of, labels_of) in zip(held, expected, strict=True):
        assert numpy.array_equal(data, images_of) and labels.tolist() == labels_of.tolist()
        assert abs(float(mean) - images_of.mean()) < 1e-5


def test_tensorflow_takes_batches_and_makes_a_dataset_of_them(images, expected):
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed")

    def batches():
        with foresee.Job(foresee.ImageFolder(images, transform=STEPS), batch_size=5, epochs=2) as job:
            for batch in job:
                yield numpy.asarray(batch.data), numpy.asarray(batch.labels)

    shape = (tf.TensorSpec((None, 3, 8, 9), tf.float32), tf.TensorSpec((None,), tf.int64))
    made = list(tf.data.Dataset.from_generator(batches, output_signature=shape).prefetch(2))
    for (data, labels), (images_of, labels_of) in zip(made, expected, strict=True):
        assert numpy.array_equal(data, images_of) and labels.numpy().tolist() == labels_of.tolist()
    with foresee.Job(foresee.ImageFolder(images, transform=STEPS), batch_size=5, epochs=1) as job:
        batch = next(job)
        data = tf.experimental.dlpack.from_dlpack(batch.data.__dlpack__())
        assert numpy.array_equal(data, expected[0][0])
