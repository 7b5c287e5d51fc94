"""Steps that ranks take together by MPI, in programs that initialise it as mpi4py does: any thread may call it.

Open MPI, by its library: mpi4py would be one more thing to install. As in bench/bare_mpi.c, a rank looks now and then whether
all have come; MPI_Barrier would keep a core busy that others need.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Iterator

LIBRARY = "libmpi.so.40"
MULTIPLE = 3
LOOK_EVERY_S = 200e-6


@contextlib.contextmanager
def together() -> Iterator[Callable[[], None]]:
    """Call what this gives after each step."""
    mpi = ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
    granted = ctypes.c_int()
    _check(mpi.MPI_Init_thread(None, None, MULTIPLE, ctypes.byref(granted)))
    world = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world"))

    def meet() -> None:
        request, is_done = ctypes.c_void_p(), ctypes.c_int()
        _check(mpi.MPI_Ibarrier(world, ctypes.byref(request)))
        while True:
            # Without a status: Open MPI's MPI_STATUS_IGNORE is a null pointer.
            _check(mpi.MPI_Test(ctypes.byref(request), ctypes.byref(is_done), None))
            if is_done.value:
                return
            time.sleep(LOOK_EVERY_S)

    yield meet
    _check(mpi.MPI_Finalize())


def _check(code: int) -> None:
    if code != 0:
        raise RuntimeError(f"MPI: error {code}")
