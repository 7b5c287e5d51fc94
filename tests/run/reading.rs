//! Reads all files of a folder by Rust's standard library, epoch after epoch; prints a sum of their bytes.

use std::{env, fs};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = env::args().collect();
    let mut sum = 0_u64;
    for _ in 0..words[2].parse::<u32>().expect("a number of epochs") {
        let entries = fs::read_dir(&words[1])?.collect::<Result<Vec<_>, _>>()?;
        let mut paths: Vec<_> = entries.iter().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            for byte in fs::read(path)? {
                sum = sum.wrapping_mul(1_000_003).wrapping_add(byte.into());
            }
        }
    }
    println!("{sum:016x}");
    Ok(())
}
