"""Training-data I/O that knows every future read.

    import foresee

    dataset = foresee.ImageFolder("/data/imagenet/train")
    with foresee.Job(dataset, batch_size=256, epochs=90, seed=0) as job:
        for batch in job:
            ...  # batch.data[i] is a sample's bytes, batch.labels[i] its label

A job knows from its seed which samples it needs when, reads them ahead, and keeps what it will need again in memory or
on a local disk, as `foresee.toml` (or the argument `config`) says.
"""

import os as _os

from . import _native, transforms
from ._dataset import Dataset, Files, ImageFolder, emulate
from ._errors import ArgumentTypeError, CacheError, ConfigError, DatasetError, ForeseeError, SampleError
from ._job import Epoch, Job
from ._native import POLICIES, Array, Batch, Buffer, Sample, Samples, Tensor, Throttle, __version__
from ._progress import progress

_native.set_up_logging(_os.environ.get("RUST_LOG"))

__all__ = [
    "POLICIES",
    "ArgumentTypeError",
    "Array",
    "Batch",
    "Buffer",
    "CacheError",
    "ConfigError",
    "Dataset",
    "DatasetError",
    "Epoch",
    "Files",
    "ForeseeError",
    "ImageFolder",
    "Job",
    "Sample",
    "SampleError",
    "Samples",
    "Tensor",
    "Throttle",
    "__version__",
    "emulate",
    "progress",
    "transforms",
]
