"""Parts of a dataset of ours: they read what they should and leave nothing behind."""

import time

import foresee
import foresee.torch
import torch


def test_random_splits_leave_no_catalogs_of_their_own(tmp_path, monkeypatch):
    for number in range(20):
        path = tmp_path / "data" / f"class{number % 2}" / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 10)
    monkeypatch.setenv("FORESEE_CATALOG_PATH", str(tmp_path / "catalogs"))
    # A folder that was changed just now may change again unseen: what was listed is not saved.
    time.sleep(2.5)
    whole = foresee.ImageFolder(tmp_path / "data")
    assert len(list((tmp_path / "catalogs").iterdir())) == 1
    for seed in range(3):
        parts = torch.utils.data.random_split(whole, [15, 5], torch.Generator().manual_seed(seed))
        for part in parts:
            loader = foresee.torch.DataLoader(part, batch_size=None)
            got = [(bytes(data)[0], int(label)) for data, label in loader]
            order = sorted(range(20), key=lambda number: (number % 2, number))
            assert got == [(order[index], order[index] % 2) for index in part.indices]
    assert len(list((tmp_path / "catalogs").iterdir())) == 1
