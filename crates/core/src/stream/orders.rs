//! All epochs' orders of a job. Tables are made when asked for and kept in a bounded window, of which the one used
//! longest ago goes first; orders that are computed (feistel, sequential) need none. Where all epochs together are small,
//! feistel's are tables as well, as a look at one takes a fraction of a computation.
//!
//! The lock is held to find an epoch's cell, never while a table is made: ranks that want the same epoch wait for one
//! making, ranks that want another do not wait at all. What is kept never changes what is answered.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::error::StreamError;
use super::feistel::Feistel;
use super::order::EpochOrder;
use super::torch;
use crate::ids::{Epoch, SampleId};

/// What the tables of a window may take together, inverses included.
const WINDOW_BYTES: u64 = 512 << 20;

/// Kept whatever they take: the epoch at hand, the one before (late ranks) and the one after (prefetching).
const WINDOW_EPOCHS_MIN: u64 = 3;

/// Small tables: so many epochs are found by a short search, and making one anew is cheap.
const WINDOW_EPOCHS_MAX: u64 = 1024;

/// Orders that could be computed become tables if all of them take no more than this: about what stays in a core's
/// share of the last cache. Beyond it, or where others fill that cache, a look waits as long as a computation takes.
const SMALL_BYTES: u64 = 16 << 20;

/// How the samples of an epoch are ordered.
#[derive(Clone, Debug)]
pub enum Shuffle {
    /// As `torch.randperm` with a generator seeded `seed + epoch`, which is what `DistributedSampler` draws.
    Torch {
        /// Seed of the job.
        seed: u64,
    },
    /// A keyed permutation that needs no memory.
    Feistel {
        /// Seed of the job.
        seed: u64,
    },
    /// As in the catalog.
    Sequential,
    /// As listed, one list an epoch, or one for all.
    Explicit(Arc<[Vec<SampleId>]>),
}

/// The orders of all epochs, shared by the ranks of a job: clones are cheap and keep one window.
#[derive(Clone)]
pub struct Orders {
    shared: Arc<Shared>,
}

struct Shared {
    making: Making,
    len: u64,
    samples: u32,
    epochs: u32,
    /// Whether orders are computed, without a table.
    computed: bool,
    window: Window,
}

type Rewrite = dyn Fn(Epoch, &EpochOrder) -> EpochOrder + Send + Sync;

enum Making {
    Drawn(Shuffle),
    Rewritten { from: Orders, by: Box<Rewrite> },
}

impl Orders {
    /// The orders of a job of so many epochs over a catalog of so many samples.
    pub fn new(shuffle: Shuffle, samples: u32, epochs: u32) -> Result<Self, StreamError> {
        if samples == 0 {
            return Err(StreamError::NoSamples);
        }
        let len = match &shuffle {
            Shuffle::Explicit(lists) => checked_len(lists, samples, epochs)?,
            Shuffle::Torch { .. } | Shuffle::Feistel { .. } | Shuffle::Sequential => {
                u64::from(samples)
            }
        };
        let forward_len = if let Shuffle::Explicit(_) = shuffle {
            0
        } else {
            len
        };
        let window = Window::new(table_bytes(forward_len, samples));
        let computed = match shuffle {
            Shuffle::Feistel { .. } => !is_small(samples, epochs),
            Shuffle::Sequential => true,
            Shuffle::Torch { .. } | Shuffle::Explicit(_) => false,
        };
        let making = Making::Drawn(shuffle);
        Ok(Self {
            shared: Arc::new(Shared {
                making,
                len,
                samples,
                epochs,
                computed,
                window,
            }),
        })
    }

    /// The same orders, with nothing shared: for a forked child, in which a lock may be held by nobody.
    #[must_use]
    pub fn anew(&self) -> Self {
        match &self.shared.making {
            Making::Drawn(shuffle) => {
                let Shared {
                    len,
                    samples,
                    epochs,
                    computed,
                    ..
                } = *self.shared;
                let window = Window {
                    epochs_max: self.shared.window.epochs_max,
                    cells: Mutex::default(),
                };
                let making = Making::Drawn(shuffle.clone());
                Self {
                    shared: Arc::new(Shared {
                        making,
                        len,
                        samples,
                        epochs,
                        computed,
                        window,
                    }),
                }
            }
            Making::Rewritten { .. } => self.clone(),
        }
    }

    /// How many positions every epoch has.
    pub fn len(&self) -> u64 {
        self.shared.len
    }

    /// Whether epochs have no position.
    pub fn is_empty(&self) -> bool {
        self.shared.len == 0
    }

    /// How many samples the catalog has.
    pub fn samples(&self) -> u32 {
        self.shared.samples
    }

    /// How many epochs the job has.
    pub fn epochs(&self) -> u32 {
        self.shared.epochs
    }

    /// One epoch's order; a table that has left the window is made anew.
    ///
    /// # Panics
    ///
    /// When the job ends before `e`, or a rewriting changed the number of positions.
    pub fn epoch(&self, e: Epoch) -> Arc<EpochOrder> {
        let shared = &*self.shared;
        assert!(e.0 < shared.epochs, "epoch {e} of {}", shared.epochs);
        match &shared.making {
            Making::Drawn(Shuffle::Feistel { seed }) if shared.computed => {
                Arc::new(feistel_order(*seed, e, shared.samples))
            }
            Making::Drawn(Shuffle::Feistel { seed }) => shared
                .window
                .get(e, || feistel_order(*seed, e, shared.samples).tabled()),
            Making::Drawn(Shuffle::Sequential) => Arc::new(EpochOrder::sequential(shared.samples)),
            Making::Drawn(Shuffle::Torch { seed }) => shared.window.get(e, || {
                let drawn = torch::randperm(shared.samples, seed.wrapping_add(u64::from(e.0)));
                EpochOrder::from_samples(drawn, shared.samples)
            }),
            Making::Drawn(Shuffle::Explicit(lists)) => shared.window.get(e, || {
                EpochOrder::given(Arc::clone(lists), e, shared.samples)
            }),
            Making::Rewritten { from, by } => shared.window.get(e, || {
                let rewritten = by(e, &from.epoch(e));
                assert_eq!(
                    rewritten.len(),
                    shared.len,
                    "positions of epoch {e} after rewriting"
                );
                rewritten
            }),
        }
    }

    /// Whether an epoch may have a sample at several positions.
    pub(crate) fn may_repeat(&self) -> bool {
        match &self.shared.making {
            Making::Drawn(shuffle) => matches!(shuffle, Shuffle::Explicit(_)),
            Making::Rewritten { from, .. } => from.may_repeat(),
        }
    }

    /// What the orders are drawn from; none where they were rewritten.
    pub(crate) fn shuffle(&self) -> Option<&Shuffle> {
        match &self.shared.making {
            Making::Drawn(shuffle) => Some(shuffle),
            Making::Rewritten { .. } => None,
        }
    }

    /// How many epochs' tables the window keeps at once; `None` where orders are computed.
    pub(crate) fn window_epochs(&self) -> Option<u32> {
        (!self.shared.computed).then_some(self.shared.window.epochs_max as u32)
    }

    /// What the tables of the window take together when it is full, those of the orders rewritten included.
    pub fn window_bytes(&self) -> u64 {
        let Shared {
            making,
            len,
            samples,
            epochs,
            ..
        } = &*self.shared;
        let full = u64::from(self.window_epochs().unwrap_or(0).min(*epochs));
        match making {
            Making::Drawn(Shuffle::Explicit(_)) => full * table_bytes(0, *samples),
            Making::Drawn(_) => full * table_bytes(*len, *samples),
            Making::Rewritten { from, .. } => {
                full * table_bytes(*len, *samples) + from.window_bytes()
            }
        }
    }

    /// Whether it is known that every epoch holds every sample once; lists and rewritings may do otherwise.
    pub(crate) fn hold_each_once(&self) -> bool {
        matches!(
            self.shared.making,
            Making::Drawn(Shuffle::Torch { .. } | Shuffle::Feistel { .. } | Shuffle::Sequential)
        )
    }

    /// The same orders with each epoch rewritten (re-dealing, substitution). What `f` returns is kept in a window of
    /// its own; it must depend on nothing but its arguments, as it is asked again for epochs that left the window.
    #[must_use]
    pub fn rewritten(
        &self,
        f: impl Fn(Epoch, &EpochOrder) -> EpochOrder + Send + Sync + 'static,
    ) -> Self {
        let len = self.len();
        let samples = self.samples();
        let epochs = self.epochs();
        let making = Making::Rewritten {
            from: self.clone(),
            by: Box::new(f),
        };
        let window = Window::new(table_bytes(len, samples));
        Self {
            shared: Arc::new(Shared {
                making,
                len,
                samples,
                epochs,
                computed: false,
                window,
            }),
        }
    }
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared {
            len,
            samples,
            epochs,
            ..
        } = &*self.shared;
        let mut orders = f.debug_struct("Orders");
        orders
            .field("len", len)
            .field("samples", samples)
            .field("epochs", epochs)
            .finish_non_exhaustive()
    }
}

fn feistel_order(seed: u64, e: Epoch, samples: u32) -> EpochOrder {
    EpochOrder::feistel(Feistel::new(samples, Feistel::key(seed, e.0)))
}

/// Whether the tables of all epochs may be kept in place of orders that are computed.
fn is_small(samples: u32, epochs: u32) -> bool {
    let fit =
        table_bytes(u64::from(samples), samples).saturating_mul(u64::from(epochs)) <= SMALL_BYTES;
    fit && u64::from(epochs) <= WINDOW_EPOCHS_MAX
}

/// The common length of explicit lists.
fn checked_len(lists: &[Vec<SampleId>], samples: u32, epochs: u32) -> Result<u64, StreamError> {
    if lists.len() != epochs as usize && lists.len() != 1 {
        return Err(StreamError::ListCount {
            lists: lists.len(),
            epochs,
        });
    }
    let first = lists.first().map_or(0, Vec::len);
    if first == 0 {
        return Err(StreamError::NoPositions);
    }
    if u32::try_from(first).is_err() {
        return Err(StreamError::TooLong {
            positions: first as u64,
            global_batch: 1,
        });
    }
    for (epoch, list) in (0..epochs).map(Epoch).zip(lists) {
        if list.len() != first {
            return Err(StreamError::ListLength {
                epoch,
                len: list.len(),
                first,
            });
        }
        if let Some(&sample) = list.iter().find(|sample| sample.0 >= samples) {
            return Err(StreamError::UnknownSample {
                epoch,
                sample,
                samples,
            });
        }
    }
    Ok(first as u64)
}

/// What a table takes with its inverse.
fn table_bytes(forward_len: u64, samples: u32) -> u64 {
    (forward_len + u64::from(samples)) * size_of::<u32>() as u64
}

type Cell = Arc<OnceLock<Arc<EpochOrder>>>;

/// The epochs used last, the latest at the end.
struct Window {
    epochs_max: usize,
    cells: Mutex<Vec<(Epoch, Cell)>>,
}

impl Window {
    fn new(table_bytes: u64) -> Self {
        let epochs_max = (WINDOW_BYTES / table_bytes.max(1))
            .clamp(WINDOW_EPOCHS_MIN, WINDOW_EPOCHS_MAX) as usize;
        Self {
            epochs_max,
            cells: Mutex::new(Vec::new()),
        }
    }

    fn get(&self, epoch: Epoch, make: impl FnOnce() -> EpochOrder) -> Arc<EpochOrder> {
        let cell = self.cell(epoch);
        Arc::clone(cell.get_or_init(|| Arc::new(make())))
    }

    fn cell(&self, epoch: Epoch) -> Cell {
        // A panic elsewhere leaves the list whole: it is changed by single operations only.
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let found = cells.iter().rposition(|(kept, _)| *kept == epoch);
        let entry = if let Some(index) = found {
            cells.remove(index)
        } else {
            if cells.len() == self.epochs_max {
                cells.remove(0);
            }
            (epoch, Cell::default())
        };
        let cell = Arc::clone(&entry.1);
        cells.push(entry);
        cell
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn the_window_keeps_three_tables_at_least_and_drops_the_one_used_longest_ago() {
        let window = Window::new(u64::MAX);
        let made = AtomicU32::new(0);
        let get = |epoch| {
            window.get(Epoch(epoch), || {
                made.fetch_add(1, Ordering::Relaxed);
                EpochOrder::sequential(1)
            });
            made.load(Ordering::Relaxed)
        };
        assert_eq!([0, 1, 2, 0, 1, 2].map(get), [1, 2, 3, 3, 3, 3]);
        assert_eq!(get(0), 3);
        assert_eq!(get(3), 4, "takes the place of epoch 1");
        assert_eq!([0, 2, 3].map(get), [4, 4, 4]);
        assert_eq!(get(1), 5);
    }

    #[test]
    fn the_window_of_a_large_dataset_fits_half_a_gibibyte() {
        assert_eq!(
            Window::new(table_bytes(14_197_122, 14_197_122)).epochs_max,
            4
        );
        assert_eq!(
            Window::new(table_bytes(1_281_167, 1_281_167)).epochs_max,
            52
        );
    }

    #[test]
    fn small_feistel_orders_are_tables_of_what_would_be_computed() {
        let samples = 2000;
        let seed = 3;
        let [small, large] = [2, 2000]
            .map(|epochs| Orders::new(Shuffle::Feistel { seed }, samples, epochs).unwrap());
        assert_eq!(
            (small.window_bytes(), large.window_bytes()),
            (2 * 2000 * 8, 0)
        );
        for epoch in [0, 1].map(Epoch) {
            let [table, computed] = [&small, &large].map(|orders| orders.epoch(epoch));
            for index in 0..samples {
                let position = crate::ids::Position(u64::from(index));
                assert_eq!(table.sample(position), computed.sample(position));
                assert_eq!(
                    table.position(SampleId(index)),
                    computed.position(SampleId(index))
                );
            }
        }
    }

    #[test]
    fn a_rewriting_is_asked_once_an_epoch_and_chains() {
        let asked = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&asked);
        let reversed =
            Orders::new(Shuffle::Sequential, 5, 2)
                .unwrap()
                .rewritten(move |_, order| {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let list = (0..order.len())
                        .rev()
                        .map(|p| order.sample(crate::ids::Position(p)))
                        .collect();
                    EpochOrder::from_samples(list, 5)
                });
        let twice = reversed.rewritten(|epoch, order| {
            let mut list: Vec<_> = (0..order.len())
                .map(|p| order.sample(crate::ids::Position(p)))
                .collect();
            list.rotate_left(epoch.index());
            EpochOrder::from_samples(list, 5)
        });
        let list = |orders: &Orders, e| {
            let order = orders.epoch(Epoch(e));
            (0..5)
                .map(|p| order.sample(crate::ids::Position(p)).0)
                .collect::<Vec<_>>()
        };
        assert_eq!(list(&twice, 0), [4, 3, 2, 1, 0]);
        assert_eq!(list(&twice, 1), [3, 2, 1, 0, 4]);
        assert_eq!(list(&reversed, 1), [4, 3, 2, 1, 0]);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn wrong_lists_are_refused_by_name() {
        let orders = |lists: &[&[u32]], samples, epochs| {
            let lists: Arc<[_]> = lists
                .iter()
                .map(|list| list.iter().map(|&s| SampleId(s)).collect())
                .collect();
            Orders::new(Shuffle::Explicit(lists), samples, epochs).map(|orders| orders.len())
        };
        assert_eq!(orders(&[&[0, 1, 1], &[2, 0, 1]], 3, 2), Ok(3));
        assert_eq!(orders(&[&[0]], 3, 2), Ok(1));
        assert_eq!(
            orders(&[&[0], &[1]], 3, 3),
            Err(StreamError::ListCount {
                lists: 2,
                epochs: 3
            })
        );
        assert_eq!(
            orders(&[&[0, 1], &[0]], 3, 2),
            Err(StreamError::ListLength {
                epoch: Epoch(1),
                len: 1,
                first: 2
            })
        );
        assert_eq!(
            orders(&[&[0], &[3]], 3, 2),
            Err(StreamError::UnknownSample {
                epoch: Epoch(1),
                sample: SampleId(3),
                samples: 3
            })
        );
        assert_eq!(orders(&[&[], &[]], 3, 2), Err(StreamError::NoPositions));
        assert_eq!(
            Orders::new(Shuffle::Sequential, 0, 2).map(|o| o.len()),
            Err(StreamError::NoSamples)
        );
    }
}
