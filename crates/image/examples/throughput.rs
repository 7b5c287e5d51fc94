//! Images a second of one pipeline on a folder of images: `throughput FOLDER [THREADS] [SECONDS] [train|eval|decode]`.
//!
//! Files are read to memory first, so that only decoding and transforming are timed.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a command for developers"
)]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use foresee_image::{
    Dtype, Key, Layout, Pipeline, RandomResizedCrop, Resize, Scratch, Size, Transform, decode,
};

const FILES_MAX: usize = 2_000;
const NORMALIZE: Transform = Transform::Normalize {
    mean: [0.485, 0.456, 0.406],
    std: [0.229, 0.224, 0.225],
};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number =
        |at: usize, default: usize| args.get(at).map_or(default, |word| word.parse().unwrap());
    let files = load(Path::new(&args[1]));
    let threads = number(2, 1);
    let seconds = number(3, 5);
    let mode = args.get(4).map_or("train", String::as_str);
    let (done, took, busy) = measure(&files, threads, Duration::from_secs(seconds as u64), mode);
    let rate = done as f64 / took.as_secs_f64();
    let cpu_ms = busy.as_secs_f64() * 1e3 / done as f64;
    println!("{mode}: {rate:.0} img/s, {threads} threads, {cpu_ms:.3} ms CPU per image");
}

fn load(folder: &Path) -> Vec<Vec<u8>> {
    let mut folders = vec![folder.to_path_buf()];
    let mut paths: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let step = paths.len().div_ceil(FILES_MAX).max(1);
    paths
        .iter()
        .step_by(step)
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

fn pipeline(mode: &str) -> Pipeline {
    let train = [
        Transform::RandomResizedCrop(RandomResizedCrop::new(Size::square(224))),
        Transform::RandomHorizontalFlip(0.5),
        NORMALIZE,
    ];
    let eval = [
        Transform::Resize(Resize::ShorterEdge {
            edge: 256,
            longer_max: None,
        }),
        Transform::CenterCrop(Size::square(224)),
        NORMALIZE,
    ];
    Pipeline::new(
        if mode == "eval" { &eval } else { &train },
        Dtype::Float32,
        Layout::Chw,
    )
    .unwrap()
}

/// Images done, wall-clock time and CPU time.
fn measure(
    files: &[Vec<u8>],
    threads: usize,
    limit: Duration,
    mode: &str,
) -> (usize, Duration, Duration) {
    let pipeline = pipeline(mode);
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    let cpu_before = cpu_time();
    let done = std::thread::scope(|scope| {
        let work = || {
            let mut scratch = Scratch::default();
            // As in a loader, results go to a batch and not always to the same place.
            let mut batch = vec![0; pipeline.output().bytes * 128];
            let mut rgb = Vec::new();
            let mut done = 0;
            while start.elapsed() < limit {
                let sample = next.fetch_add(1, Ordering::Relaxed);
                let key = Key {
                    seed: 1,
                    epoch: 0,
                    sample: sample as u64,
                };
                let file = &files[sample % files.len()];
                let place = batch
                    .chunks_exact_mut(pipeline.output().bytes)
                    .nth(done % 128)
                    .unwrap();
                if mode == "decode" {
                    decode(file, &mut scratch, &mut rgb).unwrap();
                } else {
                    pipeline.run(file, key, &mut scratch, place).unwrap();
                }
                done += 1;
            }
            done
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    (done, start.elapsed(), cpu_time().saturating_sub(cpu_before))
}

/// Of this process, all threads.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |at: usize| {
        fields
            .get(at)
            .and_then(|field| field.parse::<u64>().ok())
            .unwrap_or(0)
    };
    // Fields 14 and 15 of proc(5), in Linux's hundredths of a second.
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}
