"""Signal handlers that raise at any moment, and threads that share an iteration: each batch comes once, in its epoch."""

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import threading

import foresee
import foresee.torch
import pytest
import torch
from alarms import Alarm, Alarms
from foresee import transforms
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

SIZE, SAMPLES, BATCH = 48, 41, 3
STEPS = -(-SAMPLES // BATCH)


def numbered(file):
    return torch.tensor([file.read()[0]])


class Mapped:
    """A dataset whose samples Python makes; each is its number, and a draw of its own."""

    def __init__(self, paths, transform=None):
        self.samples = [(str(path), number) for number, path in enumerate(paths)]
        self.loader = numbered
        self.transform = transform


def drawn(number):
    return number + torch.rand(1)


def loaders(kind, images, rows):
    """A loader that makes its own: an epoch is what it gives."""
    slow = foresee.emulate(f"torch-{kind}-{os.getpid()}", mb_per_s=5.0 if kind == "decoded" else 0.1)
    paths, _ = rows
    if kind == "decoded":
        resize = transforms.Compose(
            [transforms.Resize((8, 8)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        )
        dataset = foresee.ImageFolder(images, transform=resize, throttle=slow)
        return lambda: foresee.torch.DataLoader(dataset, BATCH, shuffle=True, seed=3)
    if kind == "raw":
        dataset = foresee.Files(paths, list(range(SAMPLES)), throttle=slow)
        return lambda: foresee.torch.DataLoader(dataset, BATCH, shuffle=True, seed=3, timeout=60)
    if kind == "sampler":
        dataset = foresee.Files(paths, list(range(SAMPLES)), throttle=slow)
        batches = [[number, number + 1][: 1 + number % 2] for number in range(SAMPLES - 1)]
        return lambda: foresee.torch.DataLoader(dataset, batch_sampler=batches)
    dataset, workers = Mapped(paths, drawn), int(kind)
    return lambda: foresee.torch.DataLoader(dataset, BATCH, shuffle=True, seed=3, num_workers=workers)


KINDS = ["decoded", "raw", "sampler", "0", "2"]


def plain(batch):
    data, labels = batch
    return data.tolist(), labels.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_alarms_lose_and_repeat_nothing_and_states_count_what_arrived(images, rows, kind):
    make = loaders(kind, images, rows)
    with make() as loader:
        expected = [[plain(batch) for batch in loader] for _ in range(3)]
    got = []
    with make() as loader, Alarms(7, longest_s=0.002) as alarms:
        armed = alarms.armed
        for epoch, whole in enumerate(expected):
            got = []
            going = iter(loader)
            while True:
                with contextlib.suppress(Alarm):
                    armed[0] = True
                    for batch in going:
                        armed[0] = False
                        got.append(plain(batch))
                        armed[0] = True
                    armed[0] = False
                    break
                state = loader.state_dict()
                if (state["epoch"], state["step"]) != (epoch + 1, 0):
                    assert (state["epoch"], state["step"]) == (epoch, len(got))
            assert got == whole
    assert alarms.raised > 10


class Interrupted(BaseException):
    pass


class InterruptAt:
    """Raises where the loader, or torch's sampler, is about to run the line of this number, counted from now on."""

    def __init__(self, line):
        self.left = line

    def __enter__(self):
        self.before = sys.gettrace()
        sys.settrace(self._look)

    def __exit__(self, *_):
        sys.settrace(self.before)

    def _look(self, frame, event, _):
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise Interrupted
        elif event == "call" and not frame.f_code.co_filename.endswith(("foresee/torch.py", "data/sampler.py")):
            return None
        return self._look


@pytest.mark.parametrize("epochs", [0, 1])
def test_an_interrupt_while_an_epoch_begins_does_not_change_what_is_drawn(rows, epochs):
    dataset = foresee.Files(rows[0], list(range(SAMPLES)))

    def made():
        return foresee.torch.DataLoader(dataset, 20, shuffle=True, generator=torch.Generator().manual_seed(4))

    def taken(iteration):
        return [labels.tolist() for _, labels in iteration]

    loader = made()
    expected = [taken(loader) for _ in range(3)]
    for line in itertools.count(1):
        loader, other, iteration, torchs = made(), made(), None, torch.get_rng_state()
        assert [taken(loader) for _ in range(epochs)] == expected[:epochs]
        interrupt = InterruptAt(line)
        with contextlib.suppress(Interrupted), interrupt:
            # A loop would lose nothing once it has the iteration.
            iteration = iter(loader)
            iteration.settle()
        assert torch.equal(torchs, torch.get_rng_state())
        other.load_state_dict(loader.state_dict())
        going = loader if iteration is None else iteration
        assert taken(going) == taken(other) == expected[epochs]
        assert taken(loader) == taken(other) == expected[epochs + 1]
        if interrupt.left > 0:
            break
    assert line > 50
    # As where a handler raises before the caller has it.
    loader = made()
    iter(loader)
    assert [taken(loader) for _ in range(3)] == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_an_alarm_in_a_transform_is_no_broken_sample(rows, workers):
    def slow(number):
        # Long enough for many alarms.
        return torch.stack([number + place for place in range(200)]).sum()

    with foresee.torch.DataLoader(Mapped(rows[0], slow), 8, num_workers=workers) as loader:
        expected = [plain(batch) for batch in loader]
        got = []
        going = iter(loader)
        with Alarms(8, longest_s=0.01) as alarms:
            while len(got) < len(expected):
                with contextlib.suppress(Alarm):
                    alarms.armed[0] = True
                    for batch in going:
                        alarms.armed[0] = False
                        got.append(plain(batch))
                        alarms.armed[0] = True
                alarms.armed[0] = False
    assert got == expected
    assert alarms.raised > 0


def test_modes_of_torch_that_a_handler_kept_from_being_left_are_left(rows):
    def entered(number):
        torch._C._push_on_torch_function_stack(TorchFunctionMode())
        torch._C._push_on_torch_dispatch_stack(TorchDispatchMode())
        raise KeyboardInterrupt

    with foresee.torch.DataLoader(Mapped(rows[0], entered), BATCH) as loader, pytest.raises(KeyboardInterrupt):
        next(iter(loader))
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    with pytest.raises(foresee.ForeseeError, match="no sample is being made"):
        foresee.torch.sample_seed()


def interrupted_with_a_mode_gone(number):
    torch._C._pop_torch_function_stack()
    raise KeyboardInterrupt


def interrupted_with_a_mode_kept_by_a_generator(number):
    """A function that is written in Python: torch takes the mode away for as long as it is called."""

    def interrupt(frame, event, _):
        if event == "line":
            raise KeyboardInterrupt
        return interrupt if frame.f_code is contextlib._GeneratorContextManager.__exit__.__code__ else None

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        torch.nn.functional.dropout(torch.ones(3))
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("modes", [0, 2])
@pytest.mark.parametrize(
    "interrupted", [interrupted_with_a_mode_gone, interrupted_with_a_mode_kept_by_a_generator], ids=["gone", "kept"]
)
def test_modes_of_the_program_are_what_they_were_after_an_interrupt(rows, interrupted, modes):
    with contextlib.ExitStack() as stack:
        for _ in range(modes):
            stack.enter_context(BaseTorchFunctionMode())
        before = torch.overrides._get_current_function_mode_stack()
        with foresee.torch.DataLoader(Mapped(rows[0], interrupted), BATCH) as loader:
            with pytest.raises(KeyboardInterrupt) as raised:
                next(iter(loader))
            assert torch.overrides._get_current_function_mode_stack() == before
            # What an exception keeps ends with it.
            del raised
            gc.collect()
            assert torch.overrides._get_current_function_mode_stack() == before


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_share_an_iteration_get_each_batch_once(images, rows, kind):
    make = loaders(kind, images, rows)
    with make() as loader:
        expected = sorted(plain(batch)[1] for batch in loader)
    parts, wrong = [[], [], []], []

    def take(part):
        try:
            part.extend(plain(batch)[1] for batch in going)
        except Exception as error:  # noqa: BLE001  whatever it is
            wrong.append(error)

    with make() as loader:
        going = iter(loader)
        threads = [threading.Thread(target=take, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert wrong == [] and sorted(labels for part in parts for labels in part) == expected


# What is registered first is called last: by then everything is closed, and threads have had time to say so.
LEFT_BEHIND = """
import atexit, sys, threading, time
atexit.register(time.sleep, 0.5)
import foresee.torch, torch

class Slow:
    samples = [(path, 0) for path in sys.argv[1:]]
    transform = None

    def loader(self, file):
        time.sleep(0.005)
        return torch.tensor([file.read()[0]])

def forever(loader):
    while True:
        for _ in loader:
            pass

for dataset, workers in ((foresee.Files(sys.argv[1:]), 0), (Slow(), 0), (Slow(), 2)):
    loader = foresee.torch.DataLoader(dataset, 2, num_workers=workers)
    threading.Thread(target=forever, args=(loader,), daemon=True).start()
time.sleep(0.5)
"""


def test_daemon_threads_that_iterate_when_the_program_ends_say_nothing(rows, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(LEFT_BEHIND)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, program, *rows[0]]
    ran = subprocess.run(command, env=environment, timeout=60, capture_output=True, check=False, encoding="utf-8")
    assert (ran.returncode, ran.stderr) == (0, "")
