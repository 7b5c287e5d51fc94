//! Who is to bring a sample to its home: its first user from where the job starts, who reads it from the source and hands it
//! over. All ranks know it of all samples, from the orders alone; so whoever waits for a sample knows whose silence it is.

use std::sync::Arc;

use foresee_core::ids::{Epoch, Rank, SampleId};
use foresee_core::stream::{EpochOrder, Layout, Mark, Orders};

/// The first users of all samples.
pub struct Bringers {
    /// The epoch that the job starts in, and the next one: in that, what was used before the start is used first.
    orders: Vec<Arc<EpochOrder>>,
    layout: Layout,
    start: Mark,
}

impl Bringers {
    /// Of a job that starts there.
    pub fn new(orders: &Orders, layout: Layout, start: Mark) -> Self {
        let Mark { epoch, .. } = start;
        let until = orders.epochs().min(epoch.0.saturating_add(2));
        let epochs = (epoch.0..until).map(Epoch);
        Self {
            orders: epochs.map(|epoch| orders.epoch(epoch)).collect(),
            layout,
            start,
        }
    }

    /// Who brings a sample in; nobody, if it is not used, or not before long.
    pub fn of(&self, sample: SampleId) -> Option<Rank> {
        self.orders.iter().enumerate().find_map(|(later, order)| {
            let slot = self.layout.slot(order.position(sample)?)?;
            let is_over = later == 0 && slot.step < self.start.step;
            (!is_over).then_some(slot.rank)
        })
    }
}

#[cfg(test)]
mod tests {
    use foresee_core::ids::Step;
    use foresee_core::stream::{Deal, LayoutSpec, Shuffle, Tail};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn says_who_comes_first_in_a_walk_through_all_streams(
            samples in 1_u32..40,
            world in 1_u32..5,
            local in 1_u32..4,
            seed in 0_u64..50,
            start in (0_u32..3, 0_u32..6),
        ) {
            let orders = Orders::new(Shuffle::Feistel { seed }, samples, 3).unwrap();
            let layout = Layout::new(LayoutSpec {
                positions: u64::from(samples),
                world,
                global_batch: local * world,
                deal: Deal::Strided,
                tail: Tail::Exact,
                drop_last: false,
            })
            .unwrap();
            let mark = Mark { epoch: Epoch(start.0), step: Step(start.1.min(layout.steps())) };
            let bringers = Bringers::new(&orders, layout.clone(), mark);
            let mut first = vec![None; samples as usize];
            for epoch in mark.epoch.0..3.min(mark.epoch.0 + 2) {
                let order = orders.epoch(Epoch(epoch));
                let from = if epoch == mark.epoch.0 { mark.step.0 } else { 0 };
                for step in (from..layout.steps()).map(Step) {
                    for rank in (0..world).map(Rank) {
                        for index in 0..layout.local_len(rank, step) {
                            let sample = order.sample(layout.dealt(rank, step, index).position);
                            first[sample.index()].get_or_insert(rank);
                        }
                    }
                }
            }
            for (sample, expected) in (0..samples).map(SampleId).zip(first) {
                prop_assert_eq!(bringers.of(sample), expected);
            }
        }
    }
}
