//! Opens a saved catalog of 1.28 million samples in 1000 classes, without the files. Held to: under 3 s, and at most 64
//! bytes a sample besides the bytes of its path.

#![allow(clippy::print_stdout, reason = "a measurement")]

use std::fs::{self, File};
use std::time::{Duration, Instant, SystemTime};

use foresee_core::ids::SampleId;
use foresee_runtime::dataset::{Dataset, Listing};

const CLASSES: u32 = 1000;
const FILES_PER_CLASS: u32 = 1281;
const ROUNDS: u32 = 5;

fn main() {
    let root = tempfile::tempdir().expect("a folder");
    let cache = tempfile::tempdir().expect("a folder");
    for class in 0..CLASSES {
        let folder = root.path().join(format!("n{class:08}"));
        fs::create_dir(&folder).expect("a class folder");
        let then = SystemTime::now() - Duration::from_secs(100);
        File::open(&folder)
            .and_then(|folder| folder.set_modified(then))
            .expect("an older time");
    }
    let listing = Listing {
        cache: Some(cache.path()),
        ..Listing::default()
    };
    Dataset::pretend_image_folder(root.path(), FILES_PER_CLASS, &listing).expect("a saved catalog");
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let dataset =
            Dataset::image_folder(root.path(), &listing).expect("the saved catalog opens");
        let seconds = started.elapsed().as_secs_f64();
        let path_bytes = dataset.path(SampleId(dataset.len() - 1)).as_os_str().len();
        println!(
            "catalog/open: {} samples in {seconds:.3} s, {:.1} bytes a sample in memory, {path_bytes} bytes a path",
            dataset.len(),
            dataset.memory_bytes() as f64 / f64::from(dataset.len()),
        );
    }
}
