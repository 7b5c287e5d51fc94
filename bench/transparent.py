#!/usr/bin/env python3
"""`foresee run` beside plain runs: what it costs, and what it saves.

    bench/transparent.py costs      open + close and start-up, minima of 40 interleaved passes
    bench/transparent.py records    200 record files of 8 MB, 56 % of them cached, small reads with 1 ms of work each
    bench/transparent.py cold       the first epoch from an emulated source of 50 MB/s, small files
    bench/transparent.py ahead      --sampler, the same source: bytes beside the minimum, and waiting with 5 ms a read
    bench/transparent.py programs   ImageFolder script, tf.data over TFRecords, cp -r: 40 and 100 % of the dataset

The command is the release build, or FORESEE_BIN. `cold` and `ahead` need root and FUSE (transparent_emulated.py), `programs` root and
MooseFS (transparent_slow.py); `ahead` and `programs` torch, too (FORESEE_TORCH_PYTHON), and `programs` tensorflow
(FORESEE_TF_PYTHON); a program that is not there is left out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import moosefs
import network
import transparent_emulated
import transparent_slow
from transparent_common import REST_S, SHUFFLED, folder, foresee, made, timed

HERE = Path(__file__).resolve().parent
PASSES = 40


# --- Costs -----------------------------------------------------------------------------------------------------------


def costs() -> None:
    with folder() as here:
        program = here / "open_cost"
        subprocess.run(["cc", "-O2", "-o", program, HERE / "open_cost.c"], check=True)
        made(here / "source" / "a" / "b", 4, 50_000)
        outside = here / "outside" / "a" / "b" / "00000.bin"
        made(outside.parent, 1, 50_000)
        covered = here / "source" / "a" / "b" / "00000.bin"
        time.sleep(REST_S)
        run = foresee(here / "source", here / "cache", 1 << 30)
        subprocess.run([*run, "cat", covered], check=True, stdout=subprocess.DEVNULL)
        # What stays behind of a run, its copying process, is not to come and go while others are measured.
        with subprocess.Popen([*run, "sleep", "600"]) as idle:
            lists: dict[str, list[float]] = {}
            for _ in range(PASSES):
                for name, words in (
                    ("plain, outside", [program, outside]),
                    ("run, uncovered", [*run, program, outside]),
                    ("plain, source", [program, covered]),
                    ("run, covered and warm", [*run, program, covered]),
                ):
                    done = subprocess.run(words, check=True, capture_output=True, text=True)
                    lists.setdefault(name, []).append(float(done.stdout))
                for name, words in (("plain, true", ["/bin/true"]), ("run, true", [*run, "/bin/true"])):
                    began = time.perf_counter()
                    subprocess.run(words, check=True)
                    lists.setdefault(name, []).append((time.perf_counter() - began) * 1e9)
            idle.kill()
        least = {name: min(values) for name, values in lists.items()}
        for name, value in least.items():
            print(f"{name:24} {value / 1e3:10.2f} us")
        print(f"uncovered: {(least['run, uncovered'] - least['plain, outside']) / 1e3:+.3f} us (at most +0.2)")
        print(f"covered:   {(least['run, covered and warm'] - least['plain, source']) / 1e3:+.3f} us (at most +4)")
        print(f"start-up:  {(least['run, true'] - least['plain, true']) / 1e6:+.2f} ms (at most +3)")


# --- Records ---------------------------------------------------------------------------------------------------------

RECORDS = f"""{SHUFFLED}
for path in paths:
    number = os.open(path, os.O_RDONLY)
    while os.read(number, 256 << 10):
        time.sleep(0.001)
    os.close(number)
"""


def records() -> None:
    with folder() as here:
        total = made(here / "source", 200, 8_000_000)
        time.sleep(REST_S)
        reads_an_epoch = 200 * (8_000_000 // (256 << 10) + 2)
        for epochs in (1, 3):
            stats = here / "stats.json"
            # A folder for each: the copying process of a run lives a little longer than it.
            run = foresee(here / "source", here / f"cache{epochs}", total * 56 // 100, "--stats-json", stats)
            done = timed([*run, sys.executable, "-c", RECORDS, here / "source", epochs])
            told = json.loads(stats.read_text())
            plain, now = reads_an_epoch * epochs, told["origins"][0]["reads"]
            print(
                f"{epochs} epochs: {now} reads of the source of {plain} plainly, {100 * (1 - now / plain):.1f} % fewer; "
                f"{told['moved']} descriptors moved, {told['origins'][1]['copies']} files copied; {done.took_s:.1f} s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {
        "costs": costs,
        "records": records,
        "cold": transparent_emulated.cold,
        "ahead": transparent_emulated.ahead,
        "programs": transparent_slow.programs,
    }
    parser.add_argument("what", choices=measures)
    what = parser.parse_args().what
    needs = {"cold": transparent_emulated.missing, "ahead": transparent_emulated.missing, "programs": moosefs.missing}
    if what in needs and (lacking := needs[what]()):
        sys.exit(lacking)
    try:
        measures[what]()
    except network.SetupError as error:
        sys.exit(f"transparent: {error}")


if __name__ == "__main__":
    main()
