"""Trains a classifier on class folders of images, as the usual ImageNet scripts do.

    python examples/train_imagenet.py /data/imagenet/train --val /data/imagenet/val --epochs 90 --batch-size 256

Three lines differ from such a script with torch's own loader; they are marked. It runs on one process or under torchrun,
on GPUs or the CPU. With --checkpoint-steps it can go on in the middle of an epoch, with as many processes as there are
then, batch by batch as if it had not been stopped.
"""

import argparse
import contextlib
import itertools
import os
import time
from pathlib import Path

import foresee
import foresee.torch
import torch
from foresee import transforms as T  # changed: was torchvision.transforms
from torch import nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def arguments():
    parser = argparse.ArgumentParser(description="Train a classifier on class folders of images")
    parser.add_argument("train", type=Path, help="folder with a folder of images for each class")
    parser.add_argument("--val", type=Path, help="the same to validate on")
    parser.add_argument("--arch", default="small", help="a model of torchvision, such as resnet50, or small")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=64, help="edge of the images that the model sees")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--checkpoint-steps", type=int, default=0, help="save after so many steps too")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    return parser.parse_args()


def small(classes):
    """A net that trains on the CPU in no time."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def model_of(name, classes):
    if name == "small":
        return small(classes)
    import torchvision

    return torchvision.models.get_model(name, num_classes=classes)


def loaders(args):
    train_steps = T.Compose(
        [T.RandomResizedCrop(args.size), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]
    )
    val_steps = T.Compose([T.Resize(args.size * 8 // 7), T.CenterCrop(args.size), T.ToTensor(), T.Normalize(MEAN, STD)])
    ImageFolder, DataLoader = foresee.ImageFolder, foresee.torch.DataLoader  # changed: were torchvision's and torch's
    options = {"batch_size": args.batch_size, "num_workers": args.workers, "pin_memory": torch.cuda.is_available()}
    train = DataLoader(
        ImageFolder(args.train, transform=train_steps),
        shuffle=True,  # changed: was sampler=DistributedSampler(...), and set_epoch() in every epoch
        seed=args.seed,
        **options,
    )
    val = DataLoader(ImageFolder(args.val, transform=val_steps), **options) if args.val else None
    return train, val


def train_epoch(model, loader, optimizer, device, checkpoint):
    model.train()
    total, samples = 0.0, 0
    for images, labels in foresee.progress(loader):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        samples += len(labels)
        checkpoint()
    return total / samples


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    right, samples = 0, 0
    for images, labels in loader:
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
        samples += len(labels)
    return right / samples


def save(path, model, optimizer, loader):
    if loader.job.rank != 0:
        return
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def device_of_this_process():
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cuda", torch.cuda.current_device())


def main():
    args = arguments()
    torch.manual_seed(args.seed)
    device = device_of_this_process()
    if "RANK" in os.environ:
        torch.distributed.init_process_group()
    train, val = loaders(args)
    plain = model = model_of(args.arch, len(train.dataset.classes)).to(device)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    first = 0
    if args.resume:
        state = torch.load(args.checkpoint, map_location=device)
        plain.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        train.load_state_dict(state["loader"])
        first = state["loader"]["epoch"]
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.1 ** ((epoch + first) // 30))
    steps = itertools.count(1)

    def checkpoint():
        if args.checkpoint_steps > 0 and next(steps) % args.checkpoint_steps == 0:
            save(args.checkpoint, plain, optimizer, train)

    with contextlib.ExitStack() as stack:
        for loader in (train, val):
            if loader is not None:
                stack.enter_context(loader)
        for epoch in range(first, args.epochs):
            began = time.monotonic()
            loss = train_epoch(model, train, optimizer, device, checkpoint)
            schedule.step()
            line = f"epoch {epoch}  loss {loss:.4f}  {time.monotonic() - began:.1f} s"
            line += f"  accuracy {validate(model, val, device):.3f}" if val else ""
            if train.job.rank == 0:
                print(line)
            save(args.checkpoint, plain, optimizer, train)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
