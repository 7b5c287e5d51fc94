"""torch, for the modules that need it. Nothing else imports it, and it is not asked for its types."""

import importlib
from typing import Any

try:
    torch: Any = importlib.import_module("torch")
    data: Any = importlib.import_module("torch.utils.data")
except ImportError as missing:
    raise ImportError(
        "foresee.torch needs PyTorch: install torch, or use foresee.Job, which needs nothing"
    ) from missing
