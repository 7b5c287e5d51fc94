//! Memory that ranks share: what a reader found on a holder's board stays as it is until it lets go of it, whatever the holder
//! evicts and keeps meanwhile; and then its room is used again.

use std::sync::Arc;

use foresee_core::ids::{Rank, SampleId};

use super::explore;
use crate::arena::{Arena, Keeps};
use crate::host;
use crate::sync::thread;
use crate::tier::{Kept, MemoryTier, Stay, Tier};

const LEN: usize = 64;
const SAMPLES: u32 = 3;
const HOLDER: Rank = Rank(0);

/// A holder with room for one sample, and a reader of it.
fn pair() -> (Arc<MemoryTier>, Arc<Arena>, Arc<Arena>) {
    let keeps = Keeps {
        bytes: LEN as u64,
        samples: 0,
        largest: LEN as u64,
    };
    let holder = Arena::new(LEN as u64, keeps).unwrap();
    let reader = Arena::new(LEN as u64, Keeps::default()).unwrap();
    let memory = holder.offer(LEN as u64, LEN as u64).unwrap();
    let (of_holder, of_reader) = host::within_a_process(SAMPLES, &memory).unwrap();
    holder.share(of_holder);
    reader.share(of_reader);
    let tier = Arc::new(MemoryTier::new(Arc::clone(&holder), LEN as u64));
    (tier, holder, reader)
}

fn keep(tier: &MemoryTier, sample: u8) -> bool {
    let kept = tier.keep(SampleId(sample.into()), &[sample; LEN], None);
    kept.unwrap() == Kept::Yes
}

/// Fetches a sample, looks at it, lets others go on, and looks again.
fn fetch(reader: &Arc<Arena>, sample: u8) {
    let Some(block) = reader.near(HOLDER, SampleId(sample.into()), LEN) else {
        return;
    };
    for _ in 0..3 {
        assert!(
            block.bytes().iter().all(|byte| *byte == sample),
            "bytes of sample {sample} became {:?}",
            block.bytes()
        );
        thread::yield_now();
    }
}

#[test]
fn what_a_reader_has_is_not_used_again_before_it_lets_go() {
    explore(|| {
        let (tier, holder, reader) = pair();
        assert!(keep(&tier, 1));
        let readers = [1, 2].map(|sample| {
            let reader = Arc::clone(&reader);
            thread::spawn(move || fetch(&reader, sample))
        });
        tier.evict(SampleId(1));
        // There is no room where somebody still reads.
        if keep(&tier, 2) {
            tier.evict(SampleId(2));
        }
        keep(&tier, 1);
        for one in readers {
            one.join().unwrap();
        }
        tier.evict(SampleId(1));
        assert!(
            holder.keep(LEN, Stay::Lasting).is_some(),
            "all room is free again"
        );
    });
}
