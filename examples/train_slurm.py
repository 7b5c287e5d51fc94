"""Trains a classifier under SLURM, over as many time limits as it takes.

    sbatch examples/train_slurm.sh /data/imagenet/train

Before the time limit SLURM sends SIGTERM to every rank (--signal in train_slurm.sh), and likewise when the job is cancelled
or preempted. The ranks then agree on the step after which they stop: the signal reaches them at different moments, and one
that went a step further than the others would train on samples that the next run trains on again. Rank 0 saves model,
optimizer and the place in the order (job.state_dict()), and all of them end in order. The next run goes on with the
step that follows, on as many ranks as it has. A state is saved after each epoch, too, for hosts that fail without a signal.

What ranks keep is in foresee.toml or its variables (docs/config.md); train_slurm.sh sets them.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import foresee
import torch
from foresee import transforms as T
from torch import distributed, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arguments():
    parser = argparse.ArgumentParser(description="Train a classifier under SLURM")
    parser.add_argument("train", type=Path, help="folder with a folder of images for each class")
    parser.add_argument("--state", type=Path, required=True, help="file to save to, and to go on from")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--size", type=int, default=32, help="edge of the images that the model sees")
    parser.add_argument("--step-ms", type=int, default=0, help="what a step takes at least, as of a bigger model")
    parser.add_argument("--record", type=Path, help="folder for what each rank trained on: a line for each step")
    parser.add_argument("--lr", type=float, default=0.05)
    return parser.parse_args()


class Signalled:
    """Whether SIGTERM came, to any rank."""

    def __init__(self):
        self.here = False
        signal.signal(signal.SIGTERM, self.note)

    def note(self, *_):
        # Nothing else: the step that is under way is finished first.
        self.here = True

    def anywhere(self, device):
        """The same answer on all ranks, which all ask after the same step."""
        flag = torch.tensor(int(self.here), device=device)
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return bool(flag)


def as_torchrun():
    """What torch looks for, as srun has it: ranks meet at the first host of the job."""
    job = os.environ
    if "RANK" in job or "SLURM_PROCID" not in job:
        return
    hosts = subprocess.run(
        ["scontrol", "show", "hostnames", job["SLURM_STEP_NODELIST"]], capture_output=True, check=True, text=True
    )
    # A port that jobs of the same host hardly share.
    port = 10000 + int(job["SLURM_JOB_ID"]) % 10000
    job.setdefault("MASTER_ADDR", hosts.stdout.split()[0])
    job.setdefault("MASTER_PORT", str(port))
    job |= {"RANK": job["SLURM_PROCID"], "WORLD_SIZE": job["SLURM_NTASKS"], "LOCAL_RANK": job["SLURM_LOCALID"]}


def small(classes):
    """A net that trains on the CPU in no time."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, classes),
    )


def save(path, model, optimizer, job):
    """Rank 0 saves where all of them are; who reads it finds the old state or the new one, whole."""
    if job.rank != 0:
        return
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "job": job.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def load(path, device, model, optimizer, job):
    if not path.exists():
        return
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    job.load_state_dict(state["job"])


@contextlib.contextmanager
def recorder(folder, rank):
    """Writes which samples a step had; a run that goes on adds to it."""
    if folder is None:
        yield lambda batch: None
        return
    with (folder / f"rank{rank}.jsonl").open("a") as file:

        def write(batch):
            real = [index for index, is_real in zip(batch.indices, batch.mask, strict=True) if is_real]
            print(json.dumps({"epoch": batch.epoch, "step": batch.step, "samples": real}), file=file, flush=True)

        yield write


def train(args, device, signalled):
    """Whether the training is done; else it is to go on in another run."""
    steps = T.Compose([T.RandomResizedCrop(args.size), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
    dataset = foresee.ImageFolder(args.train, transform=steps)
    plain = small(len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(plain.parameters(), lr=args.lr, momentum=0.9)
    with foresee.Job(dataset, args.batch_size, args.epochs, seed=0) as job:
        load(args.state, device, plain, optimizer, job)
        model = nn.parallel.DistributedDataParallel(plain)
        with recorder(args.record, distributed.get_rank()) as record:
            for batch in job:
                images = torch.from_dlpack(batch.data).to(device)
                labels = torch.from_dlpack(batch.labels).to(device)
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                record(batch)
                time.sleep(args.step_ms / 1000)
                is_last = batch.step + 1 == job.steps_per_epoch
                if is_last and job.rank == 0:
                    print(f"epoch {batch.epoch}  loss {loss.item():.4f}", flush=True)
                stops = signalled.anywhere(device)
                if is_last or stops:
                    save(args.state, plain, optimizer, job)
                if stops:
                    break
        return job.position[0] == args.epochs


def main():
    args = arguments()
    signalled = Signalled()
    torch.manual_seed(0)
    as_torchrun()
    distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        device = torch.device("cuda", torch.cuda.current_device())
    is_done = train(args, device, signalled)
    # Nobody ends, and is the reason for others to be ended, before the state is saved.
    distributed.barrier()
    if distributed.get_rank() == 0:
        again = args.state.with_suffix(".again")
        if is_done:
            again.unlink(missing_ok=True)
        else:
            again.touch()
            print("stopped before the time limit; the state is saved", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
