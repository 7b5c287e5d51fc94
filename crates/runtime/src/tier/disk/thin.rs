//! A tier on disk with more space than it may fill: after its capacity was lowered, or beside the other folders of its slot. Its
//! files are thin: they take no more of the disk than what is held, since what is free is given back as holes.

use std::io;

use super::{DiskTier, locked};

impl DiskTier {
    /// Drops so many bytes of samples, or a little more; how many it was. Those that lie last go: what is free is in one piece
    /// then, and small samples leave no blocks behind of which they were a part.
    pub(super) fn drop_last(&self, bytes: u64) -> u64 {
        let mut dropped = 0;
        if bytes > 0 {
            let mut index = self.index();
            for (sample, len) in index.last_first() {
                if dropped >= bytes {
                    break;
                }
                index.evict(sample);
                dropped += len;
            }
        }
        dropped
    }

    /// Takes no more of the disk than what it holds from here on, instead of all that it has space for.
    pub(super) fn thin(&self) {
        self.index().remember_freed();
        self.give_back_freed();
    }

    /// What is written to a thin file may be new to the disk, of which enough is to stay free.
    pub(super) fn check_thin(&self, len: u64) -> io::Result<()> {
        let is_thin = self.index().remembers_freed();
        if is_thin {
            self.segments.check_floor(len)
        } else {
            Ok(())
        }
    }

    /// Gives the disk back what became free, once the index on disk says so: who is killed in between leaves no index that names
    /// what is not there. Nobody is given a range meanwhile.
    pub(super) fn give_back_freed(&self) {
        if !self.index().remembers_freed() {
            return;
        }
        let mut log = locked(&self.log);
        let mut index = self.index();
        let freed = index.take_freed();
        if freed.is_empty() {
            return;
        }
        let evicted = index.take_evicted();
        drop(index);
        let noted = log.write(&evicted, None);
        drop(log);
        match noted {
            Ok(()) => freed.iter().for_each(|range| self.segments.punch(*range)),
            Err(_) => self.index().put_back_evicted(evicted),
        }
        self.index().put_back(&freed, noted.is_ok());
        self.left.notify_all();
    }
}
