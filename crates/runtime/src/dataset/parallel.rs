//! Work shared by several threads, or by as many as there are to be had; a list worked on in chunks that are taken from
//! front to back.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Items that a thread takes at a time: enough to hide the lock, few enough that a thousand folders use all threads.
const CHUNK: usize = 64;

/// Whether to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Go,
    Stop,
}

/// Gives every chunk, with the index of its first item, to `work`. Once `work` says stop no further chunk is begun, but
/// all chunks before that one have been.
pub(super) fn in_chunks<T: Send>(
    items: &mut [T],
    threads: usize,
    work: impl Fn(usize, &mut [T]) -> Next + Sync,
) {
    let threads = threads.min(items.len().div_ceil(CHUNK)).max(1);
    let chunks = Mutex::new(items.chunks_mut(CHUNK).enumerate());
    let stopped = AtomicBool::new(false);
    let take = || chunks.lock().expect("taking a chunk does not panic").next();
    let run = || {
        while !stopped.load(Ordering::Relaxed) {
            let Some((chunk, items)) = take() else { return };
            if work(chunk * CHUNK, items) == Next::Stop {
                stopped.store(true, Ordering::Relaxed);
            }
        }
    };
    on_threads(threads, run);
}

/// Does `work` on this thread and on others, so many in all. Where no more can be started, fewer do the same: they take
/// from one list.
pub(super) fn on_threads(threads: usize, work: impl Fn() + Sync) {
    thread::scope(|scope| {
        for started in 1..threads {
            if let Err(error) = thread::Builder::new().spawn_scoped(scope, &work) {
                tracing::debug!(
                    "cannot start more threads to list with: {error}; going on with {started}"
                );
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_every_item_once_with_its_index() {
        let mut items = vec![0; 1000];
        in_chunks(&mut items, 4, |first, chunk| {
            chunk
                .iter_mut()
                .enumerate()
                .for_each(|(offset, item)| *item += first + offset);
            Next::Go
        });
        assert_eq!(items, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn finishes_what_comes_before_the_chunk_that_stopped() {
        let mut items = vec![0; 1000];
        in_chunks(&mut items, 4, |first, chunk| {
            chunk.fill(1);
            if first >= 512 { Next::Stop } else { Next::Go }
        });
        assert!(items[..512].iter().all(|&item| item == 1));
    }
}
