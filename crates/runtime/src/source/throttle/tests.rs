//! The emulated storage on real time, within one process. Bounds are wide where a busy machine only makes things later.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

fn curve(points: &[(u32, f64)]) -> Curve {
    Curve::new(points.to_vec(), Beyond::Clamp).unwrap()
}

fn open(folder: &TempDir, points: &[(u32, f64)], latency_s: f64) -> Throttle {
    Throttle::open_in(folder.path(), "storage", curve(points), Seconds(latency_s)).unwrap()
}

/// Seconds that `threads` threads take for `reads` reads each.
fn timed(throttle: &Throttle, threads: usize, reads: usize, bytes: u64) -> f64 {
    let started = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..reads).for_each(|_| throttle.charge(Bytes(bytes)).unwrap()));
        }
    });
    started.elapsed().as_secs_f64()
}

/// Never faster than `ideal_s`, and about as fast in one of some tries: others may keep the machine busy.
#[track_caller]
fn assert_takes(ideal_s: f64, took_s: impl Fn() -> f64) {
    let is_met = |took_s: f64| {
        assert!(
            took_s >= 0.98 * ideal_s,
            "{took_s} s is too fast for {ideal_s} s"
        );
        took_s <= 1.05 * ideal_s
    };
    assert!(
        (0..20).any(|_| is_met(took_s())),
        "always too slow for {ideal_s} s"
    );
}

#[test]
fn one_thread_gets_the_throughput_of_one_reader() {
    let folder = tempfile::tempdir().unwrap();
    assert_takes(0.1, || {
        timed(&open(&folder, &[(1, 50.0)], 0.0), 1, 50, 100_000)
    });
    assert_takes(0.1, || {
        timed(&open(&folder, &[(1, 1000.0)], 0.0), 1, 1000, 100_000)
    });
}

#[test]
fn several_threads_get_the_throughput_of_as_many_readers_together() {
    let folder = tempfile::tempdir().unwrap();
    // The first and the last reads have fewer under way, which is a hundredth of the time.
    assert_takes(0.4, || {
        timed(
            &open(&folder, &[(1, 50.0), (4, 100.0)], 0.0),
            4,
            100,
            100_000,
        )
    });
}

#[test]
fn latencies_of_several_reads_overlap() {
    let folder = tempfile::tempdir().unwrap();
    assert_takes(0.1, || {
        timed(&open(&folder, &[(1, 1000.0)], 0.05), 8, 2, 1000)
    });
}

#[test]
fn refuses_another_curve_or_latency_while_it_is_in_use_and_names_both() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(&folder, &[(1, 50.0)], 0.0);
    let again = open(&folder, &[(1, 50.0)], 0.0);
    for (points, latency_s) in [([(1, 51.0)], 0.0), ([(1, 50.0)], 0.1)] {
        let other = Throttle::open_in(folder.path(), "storage", curve(&points), Seconds(latency_s));
        let text = other.unwrap_err().to_string();
        assert!(text.contains("1: 50; latency 0 s"), "{text}");
        assert!(
            text.contains(&describe(&curve(&points), Seconds(latency_s))),
            "{text}"
        );
    }
    drop(first);
    assert!(
        Throttle::open_in(folder.path(), "storage", curve(&[(1, 51.0)]), Seconds(0.0)).is_err()
    );
    drop(again);
    open(&folder, &[(1, 51.0)], 0.0);
}

#[test]
fn refuses_names_that_are_no_names() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["", "a/b", "..", ".hidden", "a b", "\u{e9}", &"x".repeat(65)] {
        let refused = Throttle::open_in(folder.path(), name, curve(&[(1, 1.0)]), Seconds(0.0));
        assert!(matches!(refused, Err(ThrottleError::Name(_))), "{name}");
    }
    let negative = Throttle::open_in(folder.path(), "a", curve(&[(1, 1.0)]), Seconds(-1.0));
    assert!(matches!(negative, Err(ThrottleError::Latency { .. })));
}

#[test]
fn nothing_is_under_way_once_all_reads_are_over() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = open(&folder, &[(1, 1000.0)], 0.0);
    timed(&throttle, 4, 10, 1000);
    let ledger = Ledger::open(&throttle.path).unwrap();
    let (_, seat) = throttle.own_seat(&ledger).unwrap().unwrap();
    assert_eq!(
        (ledger.pipe().unwrap().under_way, seat.reads, seat.booked_ns),
        (0, 0, 0)
    );
}

#[test]
fn a_child_that_inherits_a_throttle_takes_a_seat_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = open(&folder, &[(1, 1000.0)], 0.0);
    // As in a forked child: the process' number is not the one that took the seat.
    throttle
        .seat
        .store(u64::from(std::process::id() + 1) << 32, Ordering::Relaxed);
    throttle.charge(Bytes(1)).unwrap();
    assert_eq!(
        throttle.seat.load(Ordering::Relaxed) >> 32,
        u64::from(std::process::id())
    );
}

#[test]
fn begins_anew_on_a_file_that_is_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    for content in [
        b"".as_slice(),
        b"something else",
        &vec![0; 40_000],
        b"foreseeT and then nothing of use for anybody, but enough of it",
    ] {
        fs::write(folder.path().join("storage.throttle"), content).unwrap();
        open(&folder, &[(1, 1000.0)], 0.0)
            .charge(Bytes(1000))
            .unwrap();
    }
}

#[test]
fn says_that_its_file_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let throttle = Arc::new(open(&folder, &[(1, 1000.0)], 0.0));
    fs::remove_file(&throttle.path).unwrap();
    let text = throttle.charge(Bytes(1)).unwrap_err().to_string();
    assert!(
        text.contains("storage.throttle") && text.contains("No such file"),
        "{text}"
    );
}
