//! Samples in the trainer's hands. Their room in the staging buffer is free again when the last lease of a loan is dropped,
//! whichever thread drops it. In a forked child they are only left behind: their memory may be read, but it is the parent's
//! to give back.
//!
//! A sample that is handed over as it is has a loan of its own. The samples of a decoded batch lie side by side and are
//! given back together: their leases share one loan, so that the job's lock is taken once a batch.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use foresee_core::ids::SampleId;

use super::consumer::Gathered;
use super::loans::Numbers;
use super::shared::Shared;
use crate::arena::Piece;
use crate::fork;
use crate::tier::forbid_writes;

/// A sample in the trainer's hands.
pub struct Lease {
    piece: ManuallyDrop<Piece>,
    loan: ManuallyDrop<Hold>,
    /// Of this process, when it was handed over.
    forks: u32,
}

/// Who has a loan.
enum Hold {
    Alone(Loan),
    Together(Arc<Loan>),
}

/// What the job counts as being in the trainer's hands until this is dropped.
struct Loan {
    shared: Arc<Shared>,
    course: u64,
    numbers: Numbers,
    /// Those that may have to move to where they stay.
    unsettled: Samples,
}

enum Samples {
    One(SampleId),
    Several(Vec<SampleId>),
}

impl Samples {
    fn as_slice(&self) -> &[SampleId] {
        match self {
            Self::One(sample) => std::slice::from_ref(sample),
            Self::Several(samples) => samples,
        }
    }
}

impl Lease {
    /// A sample with a loan of its own.
    pub(super) fn alone(shared: &Arc<Shared>, gathered: Gathered) -> Self {
        let unsettled = if gathered.piece.block().is_read_only() {
            Samples::Several(Vec::new())
        } else {
            Samples::One(gathered.sample)
        };
        let loan = Loan {
            shared: Arc::clone(shared),
            course: gathered.course,
            numbers: gathered.loans,
            unsettled,
        };
        Self::new(gathered.piece, Hold::Alone(loan))
    }

    fn new(piece: Piece, loan: Hold) -> Self {
        Self {
            piece: ManuallyDrop::new(piece),
            loan: ManuallyDrop::new(loan),
            forks: fork::forks(),
        }
    }

    /// The sample.
    pub fn bytes(&self) -> &[u8] {
        self.piece.bytes()
    }

    /// Whether others have it, too, so that its memory cannot be written.
    pub fn is_shared(&self) -> bool {
        self.piece.block().is_read_only()
    }

    /// From here to the end of another sample of the same batch.
    pub(super) fn up_to<'a>(&'a self, last: &'a Self) -> Option<&'a [u8]> {
        self.piece.up_to(&last.piece)
    }

    fn loan(&self) -> &Loan {
        match &*self.loan {
            Hold::Alone(loan) => loan,
            Hold::Together(loan) => loan,
        }
    }
}

/// Puts the samples of a batch into the trainer's hands: with one loan where they are decoded, else with one each.
pub(super) struct Lender<'a> {
    shared: &'a Arc<Shared>,
    together: Option<Arc<Loan>>,
}

impl<'a> Lender<'a> {
    /// For samples that were gathered one after the other.
    pub(super) fn new(shared: &'a Arc<Shared>, gathered: &[Gathered]) -> Self {
        let is_decoded = shared.spec.images.is_some();
        let ends = gathered.first().zip(gathered.last());
        let together = ends.filter(|_| is_decoded).map(|(first, last)| {
            Arc::new(Loan {
                shared: Arc::clone(shared),
                course: first.course,
                numbers: first.loans.start..last.loans.end,
                unsettled: Samples::Several(gathered.iter().map(|one| one.sample).collect()),
            })
        });
        Self { shared, together }
    }

    /// The lease of one of them.
    pub(super) fn lend(&self, gathered: Gathered) -> Lease {
        match &self.together {
            Some(loan) => Lease::new(gathered.piece, Hold::Together(Arc::clone(loan))),
            None => Lease::alone(self.shared, gathered),
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("bytes", &self.bytes().len())
            .finish_non_exhaustive()
    }
}

impl Drop for Lease {
    #[allow(unsafe_code, reason = "what a fork brought along must not be dropped")]
    fn drop(&mut self) {
        if !self.loan().shared.is_of_this_process() {
            return;
        }
        // SAFETY: both are taken here, once, and not touched again: this is the end of the lease.
        let (piece, loan) = unsafe {
            (
                ManuallyDrop::take(&mut self.piece),
                ManuallyDrop::take(&mut self.loan),
            )
        };
        piece.block().returned(self.forks);
        // Its memory is free before anybody is told that there is room.
        drop(piece);
        drop(loan);
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let _trainer = forbid_writes();
        let stores = &self.shared.stores;
        let unsettled = self.unsettled.as_slice().iter();
        // Almost always none, which needs no memory.
        let homeless: Vec<_> = unsettled
            .filter_map(|&sample| stores.settle(sample).map(|tier| (sample, tier)))
            .collect();
        let course = self.course;
        let numbers = self.numbers.clone();
        self.shared.change(|state| {
            for (sample, tier) in homeless {
                state.give_up(course, sample, tier, stores);
            }
            ((), state.release(course, numbers))
        });
    }
}
