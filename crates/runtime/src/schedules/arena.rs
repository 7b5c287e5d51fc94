//! Memory: whoever has a sample sees its bytes until it lets go of it, whatever is evicted, staged or kept meanwhile.
//!
//! A place that is given away too early shows as bytes of another sample: each sample has bytes of its own, and who holds one
//! looks twice, with other threads in between.

use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::explore;
use crate::arena::{Arena, Filling, Keeps};
use crate::sync::thread;
use crate::tier::{Kept, MemoryTier, Shared, Tier};

const LEN: usize = 64;

fn fill(mut filling: Filling, sample: u8) -> Filling {
    let (first, second) = filling.bytes_mut().split_at_mut(LEN / 2);
    first.fill(sample);
    thread::yield_now();
    second.fill(sample);
    filling
}

/// Looks at a sample, lets others go on, and looks again.
fn check(bytes: &[u8], sample: u8) {
    for _ in 0..2 {
        assert!(
            bytes.iter().all(|byte| *byte == sample),
            "bytes of sample {sample} became {bytes:?}"
        );
        thread::yield_now();
    }
}

#[test]
fn a_place_is_staged_again_only_when_its_last_user_is_done() {
    explore(|| {
        // Room for two samples, and three that are staged.
        let arena = Arena::new(2 * LEN as u64, Keeps::default()).unwrap();
        let threads = [1, 2, 3].map(|sample| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                let Some(filling) = arena.stage(LEN) else {
                    return;
                };
                let block = fill(filling, sample).share();
                let lent = Arc::clone(&block);
                let trainer = thread::spawn(move || check(lent.bytes(), sample));
                check(block.bytes(), sample);
                drop(block);
                trainer.join().unwrap();
            })
        });
        for one in threads {
            one.join().unwrap();
        }
        let all = [arena.stage(LEN), arena.stage(LEN)];
        assert!(all.iter().all(Option::is_some), "all room is free again");
    });
}

#[test]
fn an_evicted_sample_lives_until_its_last_user_is_done() {
    explore(|| {
        let tier = Arc::new(MemoryTier::with_capacity(LEN as u64, 0).unwrap());
        assert_eq!(tier.keep(SampleId(1), &[1; LEN], None).unwrap(), Kept::Yes);
        let lending = Arc::clone(&tier);
        let trainer = thread::spawn(move || {
            if let Shared::Block(block) = lending.share(SampleId(1)) {
                check(block.bytes(), 1);
            }
        });
        let evicting = Arc::clone(&tier);
        let keeper = thread::spawn(move || {
            evicting.evict(SampleId(1));
            // There is room for one only: it has to wait for the other's last user, or goes without.
            if evicting.keep(SampleId(2), &[2; LEN], None).unwrap() == Kept::Yes {
                let Shared::Block(block) = evicting.share(SampleId(2)) else {
                    panic!("nobody else evicts it")
                };
                check(block.bytes(), 2);
            }
        });
        trainer.join().unwrap();
        keeper.join().unwrap();
        tier.evict(SampleId(2));
        assert_eq!(
            tier.keep(SampleId(3), &[3; LEN], None).unwrap(),
            Kept::Yes,
            "all room is free again"
        );
    });
}

#[test]
fn samples_of_one_tier_are_read_kept_and_evicted_at_once() {
    explore(|| {
        let tier = Arc::new(MemoryTier::with_capacity(2 * LEN as u64, 0).unwrap());
        let threads = [1, 2].map(|sample| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || {
                let own = SampleId(sample);
                let other = SampleId(3 - sample);
                let data = [sample as u8; LEN];
                // One that is kept again needs room for both for a moment, so there may be none.
                let _ = tier.keep(own, &data, None).unwrap();
                if let Shared::Block(block) = tier.share(other) {
                    check(block.bytes(), other.0 as u8);
                }
                tier.evict(other);
                if tier.keep(own, &data, None).unwrap() == Kept::Yes {
                    let mut read = [0; LEN];
                    let _ = tier.read(own, &mut read).unwrap();
                    assert!(read == data || read == [0; LEN], "another's bytes");
                }
            })
        });
        for one in threads {
            one.join().unwrap();
        }
        for sample in [1, 2].map(SampleId) {
            tier.evict(sample);
        }
        for sample in [3, 4].map(SampleId) {
            let kept = tier.keep(sample, &[0; LEN], None).unwrap();
            assert_eq!(kept, Kept::Yes, "all room is free again");
        }
    });
}
