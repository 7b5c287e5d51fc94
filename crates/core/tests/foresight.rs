//! Foresight against plain vectors of all uses: every question, for every sample, from every step.

use std::sync::Arc;

use foresee_core::foresight::{By, Favourite, Foresight, Use, When};
use foresee_core::ids::{Epoch, Host, Position, Rank, SampleId, Step};
use foresee_core::model::Hosts;
use foresee_core::stream::{
    Access, Deal, EpochOrder, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail,
};
use proptest::prelude::*;

/// A job small enough to write out.
#[derive(Clone, Debug)]
struct Job {
    orders: Orders,
    layout: Layout,
    hosts: Hosts,
    /// Whether every epoch uses every sample exactly once.
    exact: bool,
}

impl Job {
    fn foresight(&self) -> Foresight {
        Foresight::new(self.orders.clone(), self.layout.clone(), self.hosts.clone())
    }

    fn samples(&self) -> impl Iterator<Item = SampleId> + use<> {
        (0..self.orders.samples()).map(SampleId)
    }

    fn hosts(&self) -> impl Iterator<Item = Host> + use<> {
        (0..self.hosts.count()).map(Host)
    }

    /// Every rank, every host, everyone, and some that do not exist.
    fn everybody(&self) -> Vec<By> {
        let ranks = (0..=self.hosts.ranks()).map(|rank| By::Rank(Rank(rank)));
        let hosts = self
            .hosts()
            .chain([Host(self.hosts.ranks()), Host(u32::MAX)])
            .map(By::Host);
        ranks.chain(hosts).chain([By::Anyone]).collect()
    }

    /// Every access of the job with its rank, in no order that matters.
    fn accesses(&self) -> Vec<(Rank, Access)> {
        let start = Mark {
            epoch: Epoch(0),
            step: Step(0),
        };
        let stream = |rank| Stream::new(self.orders.clone(), self.layout.clone(), rank, start);
        self.hosts
            .all()
            .flat_map(|rank| stream(rank).map(move |access| (rank, access)))
            .collect()
    }

    /// Each sample's uses in order, by plain loops: of its positions in an epoch the first, if that is dealt.
    fn uses(&self) -> Vec<Vec<Use>> {
        let mut first_position =
            vec![vec![u64::MAX; self.orders.samples() as usize]; self.orders.epochs() as usize];
        for (epoch, firsts) in first_position.iter_mut().enumerate() {
            let order = self.orders.epoch(Epoch(epoch as u32));
            for p in 0..order.len() {
                let first = &mut firsts[order.sample(Position(p)).index()];
                *first = p.min(*first);
            }
        }
        let mut uses = vec![Vec::new(); self.orders.samples() as usize];
        for (rank, access) in self.accesses() {
            let dealt = self.layout.dealt(rank, access.step, access.index);
            if !dealt.padded
                && first_position[access.epoch.index()][access.sample.index()] == dealt.position.0
            {
                let when = When {
                    epoch: access.epoch,
                    step: access.step,
                };
                uses[access.sample.index()].push(Use { when, rank });
            }
        }
        for uses in &mut uses {
            uses.sort_by_key(|found| found.when);
        }
        uses
    }

    fn counts(&self, by: By, rank: Rank) -> bool {
        match by {
            By::Rank(only) => rank == only,
            By::Host(host) => {
                let before: u32 = self.hosts.sizes().take(host.index()).sum();
                let size = self.hosts.sizes().nth(host.index()).unwrap_or(0);
                (before..before + size).contains(&rank.0)
            }
            By::Anyone => true,
        }
    }

    /// Steps of the job, and one after its end.
    fn moments(&self) -> Vec<When> {
        let in_epoch = |epoch| {
            (0..self.layout.steps()).map(move |step| When {
                epoch,
                step: Step(step),
            })
        };
        (0..=self.orders.epochs())
            .map(Epoch)
            .flat_map(in_epoch)
            .collect()
    }
}

fn lists(samples: u32, epochs: u32) -> impl Strategy<Value = Shuffle> {
    let permutation = Just((0..samples).map(SampleId).collect::<Vec<_>>()).prop_shuffle();
    prop::collection::vec(permutation, epochs as usize)
        .prop_map(|lists| Shuffle::Explicit(lists.into()))
}

fn torn_lists(samples: u32, epochs: u32) -> impl Strategy<Value = Shuffle> {
    let list = prop::collection::vec((0..samples).prop_map(SampleId), samples as usize);
    prop::collection::vec(list, epochs as usize).prop_map(|lists| Shuffle::Explicit(lists.into()))
}

fn shuffles(samples: u32, epochs: u32) -> impl Strategy<Value = (Shuffle, bool)> {
    prop_oneof![
        3 => any::<u64>().prop_map(|seed| (Shuffle::Feistel { seed }, true)),
        2 => any::<u64>().prop_map(|seed| (Shuffle::Torch { seed }, true)),
        1 => Just((Shuffle::Sequential, true)),
        2 => lists(samples, epochs).prop_map(|shuffle| (shuffle, true)),
        2 => torn_lists(samples, epochs).prop_map(|shuffle| (shuffle, false)),
    ]
}

/// Hosts of about these sizes for so many ranks: the last ones have one each.
fn hosts(world: u32, sizes: &[u32]) -> Hosts {
    let mut left = world;
    let mut fitting = Vec::new();
    for size in sizes.iter().copied().chain(std::iter::repeat(1)) {
        if left == 0 {
            break;
        }
        fitting.push(size.min(left));
        left -= size.min(left);
    }
    Hosts::of_sizes(&fitting)
}

prop_compose! {
    fn jobs()(samples in 1_u32..50, epochs in 1_u32..9)(
        (shuffle, once) in shuffles(samples, epochs),
        samples in Just(samples),
        epochs in Just(epochs),
        world in 1_u32..9,
        sizes in prop::collection::vec(1_u32..5, 1..9),
        global_batch in 1_u32..20,
        deal in prop_oneof![Just(Deal::Strided), Just(Deal::Blocked)],
        tail in prop_oneof![2 => Just(Tail::Exact), 1 => Just(Tail::Pad), 1 => Just(Tail::Drop)],
        drop_last in any::<bool>(),
        rewritten in any::<bool>(),
    ) -> Job {
        let mut orders = Orders::new(shuffle, samples, epochs).expect("orders");
        if rewritten {
            orders = orders.rewritten(move |_, order| {
                let turned = (0..order.len()).rev().map(|p| order.sample(Position(p))).collect();
                EpochOrder::from_samples(turned, samples)
            });
        }
        // Nothing would be left to deal.
        let tail = if samples < world { Tail::Exact } else { tail };
        let drop_last = drop_last && global_batch + world <= samples;
        let spec = LayoutSpec { positions: orders.len(), world, global_batch, deal, tail, drop_last };
        let layout = Layout::new(spec).expect("a layout");
        let last = layout.batch(Step(layout.steps() - 1)).end;
        Job { orders, layout, hosts: hosts(world, &sizes), exact: once && last == u64::from(samples) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_use_is_where_a_list_of_all_uses_has_it(job in jobs()) {
        let foresight = job.foresight();
        let uses = job.uses();
        for sample in job.samples() {
            for epoch in (0..job.orders.epochs() + 2).map(Epoch) {
                let listed = uses[sample.index()].iter().find(|found| found.when.epoch == epoch);
                prop_assert_eq!(foresight.user(sample, epoch), listed.copied());
            }
        }
        for epoch in 0..2 {
            prop_assert_eq!(foresight.user(SampleId(job.orders.samples()), Epoch(epoch)), None);
        }
        if job.exact {
            prop_assert!(uses.iter().all(|uses| uses.len() == job.orders.epochs() as usize));
        }
    }

    #[test]
    fn what_comes_next_is_what_the_list_has_next(job in jobs(), some in any::<prop::sample::Index>()) {
        let foresight = job.foresight();
        let uses = job.uses();
        let steps = u64::from(job.layout.steps());
        let number = |when: When| u64::from(when.epoch.0) * steps + u64::from(when.step.0);
        let sample = SampleId(some.index(job.orders.samples() as usize) as u32);
        for by in job.everybody() {
            let listed: Vec<Use> =
                uses[sample.index()].iter().copied().filter(|found| job.counts(by, found.rank)).collect();
            prop_assert_eq!(foresight.first_use(sample, by), listed.first().copied());
            for at in job.moments() {
                let after: Vec<Use> = listed.iter().copied().filter(|found| found.when > at).collect();
                let in_later_epochs = listed.iter().copied().find(|found| found.when.epoch > at.epoch);
                prop_assert_eq!(foresight.next_use(sample, at.epoch, by), in_later_epochs);
                let two = at.epoch.0..at.epoch.0 + 2;
                let in_two = listed.iter().copied().find(|found| two.contains(&found.when.epoch.0));
                prop_assert_eq!(foresight.next_use_in(sample, two, by), in_two);
                prop_assert_eq!(foresight.next_use_after(sample, at, by), after.first().copied());
                prop_assert_eq!(foresight.uses_left(sample, at, by) as usize, after.len());
                let distance = after.first().map(|next| number(next.when) - number(at));
                prop_assert_eq!(foresight.reuse_distance(sample, at, by), distance);
            }
        }
    }

    #[test]
    fn frequencies_count_all_accesses(job in jobs()) {
        let foresight = job.foresight();
        let accesses = job.accesses();
        for by in job.everybody() {
            let mut counted = vec![0; job.orders.samples() as usize];
            for (_, access) in accesses.iter().filter(|(rank, _)| job.counts(by, *rank)) {
                counted[access.sample.index()] += 1;
            }
            let histogram = foresight.frequency_histogram(by);
            prop_assert!(histogram.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert_eq!(histogram.iter().map(|bar| bar.1).sum::<u64>(), u64::from(job.orders.samples()));
            for (uses, samples) in histogram {
                prop_assert_eq!(counted.iter().filter(|&&count| count == uses).count() as u64, samples);
                prop_assert!(samples > 0);
            }
            prop_assert_eq!(foresight.frequency(by), counted);
        }
    }

    #[test]
    fn favourites_are_the_most_frequent_users_and_of_those_the_first(job in jobs(), cut in any::<prop::sample::Index>()) {
        let foresight = job.foresight();
        let elected = job.uses().into_iter().map(|uses| {
            let votes = |rank| uses.iter().filter(|found| found.rank == rank).count() as u32;
            let most = uses.iter().map(|found| votes(found.rank)).max().unwrap_or(0);
            let first = uses.iter().find(|found| votes(found.rank) == most);
            Favourite { rank: first.map_or(Rank(0), |found| found.rank), uses: most }
        });
        let elected: Vec<Favourite> = elected.collect();
        let samples = job.orders.samples();
        let cut = cut.index(job.orders.samples() as usize) as u32;
        prop_assert_eq!(&foresight.favourites(0..samples), &elected);
        let parts = [foresight.favourites(0..cut), foresight.favourites(cut..samples)];
        prop_assert_eq!(parts.concat(), elected);
    }

    #[test]
    fn a_reuse_histogram_has_every_use_of_the_host_in_its_bin(job in jobs(), bins in 1_usize..12) {
        let foresight = job.foresight();
        let uses = job.uses();
        for host in job.hosts() {
            let histogram = foresight.reuse_histogram(host, bins);
            let mut counts = vec![0; bins];
            let mut never = 0;
            let mut furthest = 0;
            for sample in job.samples() {
                for found in uses[sample.index()].iter().filter(|found| job.counts(By::Host(host), found.rank)) {
                    let Some(distance) = foresight.reuse_distance(sample, found.when, By::Host(host)) else {
                        never += 1;
                        continue;
                    };
                    counts[(distance / histogram.bin_steps) as usize] += 1;
                    furthest = distance.max(furthest);
                }
            }
            let narrower = histogram.bin_steps / 2 * bins as u64;
            prop_assert!(narrower <= furthest, "bins of {} steps for {furthest}", histogram.bin_steps);
            prop_assert_eq!((histogram.counts, histogram.never), (counts, never));
        }
    }
}

fn job(shuffle: Shuffle, samples: u32, world: u32, epochs: u32) -> Job {
    let orders = Orders::new(shuffle, samples, epochs).expect("orders");
    let spec = LayoutSpec {
        positions: orders.len(),
        world,
        global_batch: 8 * world,
        deal: Deal::Strided,
        tail: Tail::Exact,
        drop_last: false,
    };
    Job {
        orders,
        layout: Layout::new(spec).expect("a layout"),
        hosts: Hosts::new(world, 4),
        exact: true,
    }
}

#[test]
fn a_repeated_sample_is_used_where_it_comes_first_and_a_missing_one_not_at_all() {
    let list = |samples: [u32; 8]| samples.map(SampleId).to_vec();
    let lists: Arc<[_]> = Arc::new([
        list([0, 1, 1, 2, 1, 0, 3, 3]),
        list([3, 3, 3, 3, 0, 0, 0, 0]),
    ]);
    let orders = Orders::new(Shuffle::Explicit(lists), 5, 2).unwrap();
    let spec = LayoutSpec {
        positions: 8,
        world: 2,
        global_batch: 4,
        deal: Deal::Strided,
        tail: Tail::Exact,
        drop_last: false,
    };
    let foresight = Foresight::new(orders, Layout::new(spec).unwrap(), Hosts::new(2, 1));
    let user = |sample, epoch| {
        let found = foresight.user(SampleId(sample), Epoch(epoch));
        found.map(|found| (found.when.step.0, found.rank.0))
    };
    assert_eq!(
        [0, 1, 2, 3, 4].map(|s| user(s, 0)),
        [Some((0, 0)), Some((0, 1)), Some((0, 1)), Some((1, 0)), None]
    );
    assert_eq!(
        [0, 1, 2, 3, 4].map(|s| user(s, 1)),
        [Some((1, 0)), None, None, Some((0, 0)), None]
    );
    assert_eq!(foresight.frequency(By::Rank(Rank(1))), [3, 1, 1, 3, 0]);
    assert_eq!(
        foresight.favourites(3..5),
        [(0, 2), (0, 0)].map(|(rank, uses)| Favourite {
            rank: Rank(rank),
            uses
        })
    );
}

#[test]
fn memory_does_not_grow_with_samples_and_ranks_where_orders_are_computed() {
    let bytes = |samples, world, epochs| {
        job(Shuffle::Feistel { seed: 1 }, samples, world, epochs)
            .foresight()
            .memory_bytes()
    };
    assert!(
        bytes(14_197_122, 1024, 90) < 1 << 20,
        "{} bytes",
        bytes(14_197_122, 1024, 90)
    );
    assert_eq!(bytes(14_197_122, 16, 90), bytes(100_000, 16, 90));
    assert!(
        bytes(1000, 4, 1_000_000) < 64 << 20,
        "{} bytes",
        bytes(1000, 4, 1_000_000)
    );
}

#[test]
fn memory_is_a_window_and_a_few_bytes_a_sample_where_orders_are_tables() {
    for (samples, window_epochs) in [(1_281_167, 52), (14_197_122, 4)] {
        let job = job(Shuffle::Torch { seed: 1 }, samples, 64, 1000);
        let window = window_epochs * 8 * u64::from(samples);
        assert_eq!(job.orders.window_bytes(), window);
        assert_eq!(u64::from(job.foresight().epochs_kept()), window_epochs);
        let beside = job.foresight().memory_bytes() - window;
        assert!(
            beside < 8 * u64::from(samples) + (1 << 20),
            "{beside} bytes beside the window"
        );
    }
}

#[test]
fn answers_are_the_same_beyond_the_window_and_beyond_the_epochs_that_are_kept() {
    let torch = job(Shuffle::Torch { seed: 3 }, 5, 2, 1100);
    let long = job(Shuffle::Feistel { seed: 3 }, 5, 2, 70_000);
    assert_eq!(
        (
            torch.foresight().epochs_kept(),
            long.foresight().epochs_kept()
        ),
        (1024, 65_536)
    );
    for job in [torch, long] {
        let foresight = job.foresight();
        let epochs = job.orders.epochs();
        let slot = |epoch: u32| {
            job.layout
                .slot(job.orders.epoch(Epoch(epoch)).position(SampleId(2))?)
        };
        let mut votes = [0; 2];
        // Of a job that hardly anybody sees the end of, a part tells who uses a sample most.
        let looked_at = if epochs > 65_536 { 128 } else { epochs };
        let mut votes_looked_at = [0; 2];
        for epoch in 0..epochs {
            let found = foresight.user(SampleId(2), Epoch(epoch)).unwrap();
            assert_eq!(
                Some((found.rank, found.when.step)),
                slot(epoch).map(|slot| (slot.rank, slot.step))
            );
            votes[found.rank.index()] += 1;
            votes_looked_at[found.rank.index()] += usize::from(epoch < looked_at);
        }
        let start = When {
            epoch: Epoch(0),
            step: Step(job.layout.steps()),
        };
        let first = usize::from(
            foresight
                .first_use(SampleId(2), By::Rank(Rank(1)))
                .unwrap()
                .when
                .epoch
                == Epoch(0),
        );
        assert_eq!(
            foresight.uses_left(SampleId(2), start, By::Rank(Rank(1))) as usize,
            votes[1] - first
        );
        assert_eq!(
            foresight.favourites(2..3)[0].uses as usize,
            votes_looked_at[0].max(votes_looked_at[1])
        );
    }
}

#[test]
fn favourites_of_many_blocks_are_those_of_one_sample_at_a_time() {
    let foresight = job(Shuffle::Feistel { seed: 2 }, 10_000, 6, 20).foresight();
    let whole = foresight.favourites(0..10_000);
    for (sample, favourite) in (0..).zip(&whole) {
        assert_eq!(foresight.favourites(sample..sample + 1), [*favourite]);
        let users: Vec<Rank> = (0..20)
            .filter_map(|epoch| foresight.user(SampleId(sample), Epoch(epoch)))
            .map(|found| found.rank)
            .collect();
        let votes = |rank| users.iter().filter(|&&user| user == rank).count() as u32;
        assert_eq!(votes(favourite.rank), favourite.uses);
        assert!(users.iter().all(|&user| votes(user) <= favourite.uses));
    }
}

#[test]
fn foresight_is_shared_between_threads() {
    let foresight = job(Shuffle::Torch { seed: 2 }, 500, 4, 20).foresight();
    let whole = foresight.favourites(0..500);
    let parts = std::thread::scope(|scope| {
        let parts = [0..200, 200..350, 350..500]
            .map(|part| scope.spawn(|| foresight.clone().favourites(part)));
        parts.map(|part| part.join().unwrap())
    });
    assert_eq!(parts.concat(), whole);
}

#[test]
fn a_large_job_is_sampled_evenly() {
    // 10 million samples and 5 epochs are 50 million looks, more than are taken.
    let job = job(Shuffle::Feistel { seed: 1 }, 10_000_000, 4, 5);
    let histogram = job.foresight().reuse_histogram(Host(0), 40);
    let counted = histogram.counts.iter().sum::<u64>() + histogram.never;
    assert_eq!(
        counted,
        histogram.never * 5,
        "one host uses each sample in each epoch, and has a last use of it"
    );
    assert!(
        (1_000_000..5_000_000).contains(&histogram.never),
        "{} samples",
        histogram.never
    );
    // The distance of two even draws from successive epochs: a triangle with its top at one epoch.
    let epoch_bin = (u64::from(job.layout.steps()) / histogram.bin_steps) as usize;
    let top = histogram
        .counts
        .iter()
        .enumerate()
        .max_by_key(|(_, count)| **count)
        .unwrap()
        .0;
    assert!(
        top.abs_diff(epoch_bin) <= 1,
        "top at bin {top}, an epoch is {epoch_bin}"
    );
}
