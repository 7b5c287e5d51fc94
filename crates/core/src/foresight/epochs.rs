//! The orders of all epochs, at hand for a look that should cost no more than the look itself.
//!
//! [`Orders`] make a computed order anew for every caller and find a table behind a lock, in a search. Both are right
//! once an epoch and wrong once an access. Here computed orders are made once and stay, as do tables where the window
//! keeps all of them; of other tables only the whereabouts are noted, so it is the window that decides how long they
//! live. What is noted never changes what is answered.

use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use crate::ids::Epoch;
use crate::stream::{EpochOrder, Orders};

/// Epochs that have a place here, 30 MB at most; later ones are asked from [`Orders`] every time. Jobs are far
/// shorter.
const PLACES_MAX: u32 = 1 << 16;

/// The keys of a computed order, which it keeps behind a pointer: at most 20 pairs of rounds.
const KEYS_BYTES_MAX: u64 = 20 * 16;

pub(super) struct Epochs {
    orders: Orders,
    places: Places,
}

enum Places {
    Kept(Box<[OnceLock<Arc<EpochOrder>>]>),
    Windowed(Box<[RwLock<Weak<EpochOrder>>]>),
}

impl Epochs {
    pub(super) fn new(orders: Orders) -> Self {
        let count = orders.epochs().min(PLACES_MAX);
        let places = match orders.window_epochs() {
            Some(window) if window < orders.epochs() => {
                Places::Windowed((0..count).map(|_| RwLock::new(Weak::new())).collect())
            }
            _ => Places::Kept((0..count).map(|_| OnceLock::new()).collect()),
        };
        Self { orders, places }
    }

    pub(super) fn orders(&self) -> &Orders {
        &self.orders
    }

    /// How many epochs the job has.
    #[inline]
    pub(super) fn count(&self) -> u32 {
        self.orders.epochs()
    }

    /// How many orders can be looked at again without making them.
    pub(super) fn kept(&self) -> u32 {
        self.orders
            .window_epochs()
            .unwrap_or(PLACES_MAX)
            .min(self.count())
    }

    /// What is kept at most.
    pub(super) fn bytes_max(&self) -> u64 {
        let places = match &self.places {
            Places::Kept(places) => {
                let order_bytes = size_of::<EpochOrder>() as u64 + 16 + KEYS_BYTES_MAX;
                size_of_val::<[_]>(places) as u64 + places.len() as u64 * order_bytes
            }
            // What a place points to outlives its tables, but not by much.
            Places::Windowed(places) => {
                size_of_val::<[_]>(places) as u64
                    + (places.len() * (size_of::<EpochOrder>() + 16)) as u64
            }
        };
        places + self.orders.window_bytes()
    }

    /// Looks at the order of an epoch of the job.
    #[inline]
    pub(super) fn with<R>(&self, epoch: Epoch, look: impl FnOnce(&EpochOrder) -> R) -> R {
        match &self.places {
            Places::Kept(places) => match places.get(epoch.index()) {
                Some(place) => look(place.get_or_init(|| self.orders.epoch(epoch))),
                None => look(&self.orders.epoch(epoch)),
            },
            Places::Windowed(places) => look(&self.table(places, epoch)),
        }
    }

    fn table(&self, places: &[RwLock<Weak<EpochOrder>>], epoch: Epoch) -> Arc<EpochOrder> {
        let Some(place) = places.get(epoch.index()) else {
            return self.orders.epoch(epoch);
        };
        // A panic elsewhere leaves a place whole: it is changed by one assignment only.
        let noted = place
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .upgrade();
        noted.unwrap_or_else(|| {
            let order = self.orders.epoch(epoch);
            *place.write().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&order);
            order
        })
    }
}
