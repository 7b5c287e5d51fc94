"""JAX and TensorFlow take batches as docs/torch.md says; skipped where they are not installed.

Each in a process of its own: with their threads, a process must not fork any more, which other tests do.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import foresee
import pytest

COMMON = """
import gc, sys
import foresee, numpy
from foresee import transforms as T

dataset = foresee.ImageFolder(sys.argv[1], transform=T.Compose([T.Resize((8, 9)), T.ToTensor()]))
with foresee.Job(dataset, batch_size=5, epochs=2) as job:
    expected = [(numpy.asarray(batch.data).copy(), numpy.asarray(batch.labels).copy()) for batch in job]
assert len(expected) == 16
"""

JAX = """
import jax
held = []
with foresee.Job(dataset, batch_size=5, epochs=2) as job:
    start, size = job.buffer.address, len(job.buffer)
    for batch in job:
        images, labels = jax.numpy.from_dlpack(batch.data), jax.numpy.from_dlpack(batch.labels)
        assert start <= images.unsafe_buffer_pointer() < start + size
        held.append((images, labels))
# Arrays keep what they show.
del batch
gc.collect()
for (images, labels), (data, targets) in zip(held, expected, strict=True):
    assert numpy.array_equal(images, data) and labels.tolist() == targets.tolist()
    assert abs(float(images.mean()) - data.mean()) < 1e-5
print("fine")
"""

TENSORFLOW = """
import tensorflow as tf

def batches():
    with foresee.Job(dataset, batch_size=5, epochs=2) as job:
        for batch in job:
            yield numpy.asarray(batch.data), numpy.asarray(batch.labels)

shape = (tf.TensorSpec((None, 3, 8, 9), tf.float32), tf.TensorSpec((None,), tf.int64))
made = list(tf.data.Dataset.from_generator(batches, output_signature=shape).prefetch(2))
for (images, labels), (data, targets) in zip(made, expected, strict=True):
    assert numpy.array_equal(images, data) and labels.numpy().tolist() == targets.tolist()
with foresee.Job(dataset, batch_size=5, epochs=1) as job:
    batch = next(job)
    assert numpy.array_equal(tf.experimental.dlpack.from_dlpack(batch.data.__dlpack__()), expected[0][0])
    assert numpy.array_equal(tf.convert_to_tensor(batch.data), expected[0][0])
print("fine")
"""


@pytest.mark.parametrize(("name", "code"), [("jax", JAX), ("tensorflow", TENSORFLOW)])
def test_another_framework_takes_batches(images, tmp_path, name, code):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    path = tmp_path / "script.py"
    path.write_text(COMMON + code)
    package = Path(foresee.__file__).parents[1]
    ended = subprocess.run(
        [sys.executable, path, images],
        env={**os.environ, "PYTHONPATH": str(package)},
        timeout=300,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert ended.stdout.endswith("fine\n"), ended.stderr
