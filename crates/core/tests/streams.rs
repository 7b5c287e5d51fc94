//! A rank's stream against an epoch-by-epoch walk, from any mark and across a change of the world.

use std::sync::Arc;

use foresee_core::ids::{Epoch, Position, Rank, SampleId, Step};
use foresee_core::stream::{
    Access, Deal, EpochOrder, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail,
};
use proptest::prelude::*;

const START: Mark = Mark {
    epoch: Epoch(0),
    step: Step(0),
};

/// A job small enough to write out.
#[derive(Clone, Debug)]
struct Job {
    orders: Orders,
    layout: Layout,
}

impl Job {
    fn stream(&self, rank: u32, from: Mark) -> Vec<Access> {
        Stream::new(self.orders.clone(), self.layout.clone(), Rank(rank), from).collect()
    }

    /// The same stream by plain loops.
    fn walked(&self, rank: u32) -> Vec<Access> {
        let mut accesses = Vec::new();
        for epoch in (0..self.orders.epochs()).map(Epoch) {
            let order = self.orders.epoch(epoch);
            for step in (0..self.layout.steps()).map(Step) {
                for index in 0..self.layout.local_len(Rank(rank), step) {
                    let dealt = self.layout.dealt(Rank(rank), step, index);
                    let sample = order.sample(dealt.position);
                    let padded = dealt.padded;
                    accesses.push(Access {
                        sample,
                        epoch,
                        step,
                        index,
                        padded,
                    });
                }
            }
        }
        accesses
    }
}

fn shuffles(samples: u32, epochs: u32) -> impl Strategy<Value = Shuffle> {
    let list = prop::collection::vec((0..samples).prop_map(SampleId), samples as usize);
    let lists = prop::collection::vec(list, epochs as usize);
    prop_oneof![
        any::<u64>().prop_map(|seed| Shuffle::Torch { seed }),
        any::<u64>().prop_map(|seed| Shuffle::Feistel { seed }),
        Just(Shuffle::Sequential),
        lists.prop_map(|lists| Shuffle::Explicit(lists.into())),
    ]
}

prop_compose! {
    fn jobs()(samples in 1_u32..60, epochs in 1_u32..5)(
        shuffle in shuffles(samples, epochs),
        samples in Just(samples),
        epochs in Just(epochs),
        world in 1_u32..9,
        global_batch in 1_u32..20,
        deal in prop_oneof![Just(Deal::Strided), Just(Deal::Blocked)],
        tail in prop_oneof![Just(Tail::Pad), Just(Tail::Exact)],
    ) -> Job {
        let orders = Orders::new(shuffle, samples, epochs).expect("orders");
        let positions = orders.len();
        let spec = LayoutSpec { positions, world, global_batch, deal, tail, drop_last: global_batch <= samples };
        Job { orders, layout: Layout::new(spec).expect("a layout") }
    }
}

fn key(access: &Access) -> (Epoch, Step) {
    (access.epoch, access.step)
}

/// What is delivered in each step, whoever reads it.
fn delivered(accesses: impl IntoIterator<Item = Access>) -> Vec<(Epoch, Step, SampleId, bool)> {
    let mut all: Vec<_> = accesses
        .into_iter()
        .map(|a| (a.epoch, a.step, a.sample, a.padded))
        .collect();
    all.sort_unstable();
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_stream_is_the_walk_through_epochs_and_steps(job in jobs()) {
        for rank in 0..job.layout.world() {
            let stream = job.stream(rank, START);
            prop_assert_eq!(stream.len() as u64, job.layout.rank_len(Rank(rank)) * u64::from(job.orders.epochs()));
            prop_assert_eq!(stream, job.walked(rank));
        }
    }

    #[test]
    fn a_resumed_stream_is_the_rest_of_the_whole(job in jobs(), epoch in 0_u32..6, step in 0_u32..70) {
        // Steps up to the number in an epoch, which stands for the next epoch.
        let mark = Mark { epoch: Epoch(epoch), step: Step(step % (job.layout.steps() + 1)) };
        for rank in 0..job.layout.world() {
            let whole = job.stream(rank, START);
            let rest: Vec<_> = whole.into_iter().filter(|access| key(access) >= (mark.epoch, mark.step)).collect();
            prop_assert_eq!(job.stream(rank, mark), rest);
        }
    }

    #[test]
    fn a_job_goes_on_with_another_world_as_if_nothing_had_happened(
        job in jobs(), world in 1_u32..9, epoch in 0_u32..4, step in 0_u32..60,
    ) {
        let mark = Mark { epoch: Epoch(epoch), step: Step(step % job.layout.steps()) };
        let ranks = 0..job.layout.world();
        let whole: Vec<_> = ranks.flat_map(|rank| job.stream(rank, START)).collect();
        let before = whole.iter().copied().filter(|access| key(access) < (mark.epoch, mark.step));
        let resumed = Job { layout: job.layout.redealt(world).expect("a layout"), ..job.clone() };
        let after = (0..world).flat_map(|rank| resumed.stream(rank, mark));
        prop_assert_eq!(delivered(before.chain(after)), delivered(whole));
    }

    #[test]
    fn peeking_shows_what_comes_and_the_end_stays(job in jobs()) {
        let mut stream = Stream::new(job.orders.clone(), job.layout.clone(), Rank(0), START);
        while let Some(access) = stream.peek() {
            prop_assert_eq!(stream.peek(), Some(access));
            prop_assert_eq!(stream.next(), Some(access));
        }
        stream.advance();
        prop_assert_eq!((stream.peek(), stream.next()), (None, None));
    }
}

fn layout(positions: u64, world: u32, global_batch: u32) -> Layout {
    let deal = Deal::Strided;
    let tail = Tail::Exact;
    Layout::new(LayoutSpec {
        positions,
        world,
        global_batch,
        deal,
        tail,
        drop_last: false,
    })
    .expect("a layout")
}

#[test]
fn explicit_lists_are_read_as_written() {
    let lists: Arc<[Vec<SampleId>]> = Arc::new([
        [4, 4, 0].map(SampleId).to_vec(),
        [1, 2, 3].map(SampleId).to_vec(),
    ]);
    let orders = Orders::new(Shuffle::Explicit(lists), 5, 2).unwrap();
    let job = Job {
        layout: layout(orders.len(), 1, 2),
        orders,
    };
    let read: Vec<_> = job
        .stream(0, START)
        .iter()
        .map(|a| (a.sample.0, a.epoch.0, a.step.0, a.index))
        .collect();
    assert_eq!(
        read,
        [
            (4, 0, 0, 0),
            (4, 0, 0, 1),
            (0, 0, 1, 0),
            (1, 1, 0, 0),
            (2, 1, 0, 1),
            (3, 1, 1, 0)
        ]
    );
}

#[test]
fn a_rank_without_a_share_has_an_empty_stream_however_long_the_job() {
    let orders = Orders::new(Shuffle::Torch { seed: 0 }, u32::MAX, u32::MAX).unwrap();
    let stream = Stream::new(orders.clone(), layout(orders.len(), 3, 2), Rank(2), START);
    assert_eq!(stream.peek(), None);
}

#[test]
fn a_mark_deep_in_a_long_job_is_reached_at_once() {
    let orders = Orders::new(Shuffle::Feistel { seed: 0 }, u32::MAX, u32::MAX).unwrap();
    let mark = Mark {
        epoch: Epoch(u32::MAX - 1),
        step: Step(u32::MAX - 2),
    };
    let job = Job {
        layout: layout(orders.len(), 1, 1),
        orders,
    };
    assert_eq!(job.stream(0, mark).len(), 2);
    assert_eq!(
        job.stream(
            0,
            Mark {
                epoch: Epoch(u32::MAX),
                step: Step(u32::MAX)
            }
        ),
        []
    );
}

#[test]
fn a_stream_follows_rewritten_orders() {
    let orders = Orders::new(Shuffle::Sequential, 4, 2)
        .unwrap()
        .rewritten(|epoch, order| {
            let substituted = (0..order.len()).map(|p| match order.sample(Position(p)) {
                SampleId(2) => SampleId(epoch.0),
                sample => sample,
            });
            EpochOrder::from_samples(substituted.collect(), 4)
        });
    let job = Job {
        layout: layout(4, 1, 4),
        orders,
    };
    let read: Vec<_> = job
        .stream(0, START)
        .iter()
        .map(|access| access.sample.0)
        .collect();
    assert_eq!(read, [0, 1, 0, 3, 0, 1, 1, 3]);
}

#[test]
fn ranks_on_several_threads_share_one_making_of_a_table() {
    let orders = Orders::new(Shuffle::Torch { seed: 5 }, 10_000, 3).unwrap();
    let tables: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| orders.clone().epoch(Epoch(2))))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert!(
        tables
            .windows(2)
            .all(|pair| Arc::ptr_eq(&pair[0], &pair[1]))
    );
}

#[test]
#[should_panic(expected = "positions of the orders and of the layout")]
fn a_layout_for_another_length_is_refused() {
    let orders = Orders::new(Shuffle::Sequential, 4, 1).unwrap();
    let _ = Stream::new(orders, layout(5, 1, 1), Rank(0), START);
}
