//! Layouts against a dealing written out as plain lists.

use std::ops::Range;

use foresee_core::ids::{Position, Rank, Step};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Seat, StreamError, Tail};
use proptest::prelude::*;

/// A position and whether it is padding.
type Entry = (u64, bool);

/// By step and rank.
type Dealing = Vec<Vec<Vec<Entry>>>;

/// The dealt list of an epoch.
fn dealt_list(spec: &LayoutSpec) -> Vec<Entry> {
    let mut list: Vec<Entry> = (0..spec.positions).map(|p| (p, false)).collect();
    match spec.tail {
        Tail::Pad => {
            let mut again = (0..spec.positions).cycle();
            while !list.len().is_multiple_of(spec.world as usize) {
                list.extend(again.next().map(|p| (p, true)));
            }
        }
        Tail::Drop => list.truncate(list.len() / spec.world as usize * spec.world as usize),
        Tail::Exact => {}
    }
    list
}

fn naive(spec: &LayoutSpec, dealt_to: u32) -> Dealing {
    let world = dealt_to as usize;
    let list = dealt_list(spec);
    let batches = list.chunks(spec.global_batch as usize);
    let kept = batches.filter(|batch| !spec.drop_last || batch.len() == spec.global_batch as usize);
    kept.map(|batch| {
        let m = batch.len();
        let share = |rank: usize| match spec.deal {
            Deal::Strided => batch.iter().skip(rank).step_by(world).copied().collect(),
            Deal::Blocked => batch[rank * m / world..(rank + 1) * m / world].to_vec(),
        };
        (0..world).map(share).collect()
    })
    .collect()
}

fn of_layout(layout: &Layout) -> Dealing {
    let share = |rank: Rank, step: Step| {
        let len = layout.local_len(rank, step);
        let dealt = (0..len).map(|index| layout.dealt(rank, step, index));
        dealt
            .map(|dealt| (dealt.position.0, dealt.padded))
            .collect()
    };
    let step = |step| {
        (0..layout.world())
            .map(|rank| share(Rank(rank), Step(step)))
            .collect()
    };
    (0..layout.steps()).map(step).collect()
}

prop_compose! {
    fn specs()(
        positions in 1_u64..200,
        world in 1_u32..12,
        global_batch in 1_u32..40,
        deal in prop_oneof![Just(Deal::Strided), Just(Deal::Blocked)],
        tail in prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Exact)],
        drop_last: bool,
    ) -> LayoutSpec {
        LayoutSpec { positions, world, global_batch, deal, tail, drop_last }
    }
}

/// The layout of a spec, unless the reference has nothing to deal either.
fn layout_of(spec: LayoutSpec) -> Result<Option<Layout>, TestCaseError> {
    match Layout::new(spec) {
        Ok(layout) => Ok(Some(layout)),
        Err(error) => {
            prop_assert!(naive(&spec, spec.world).is_empty(), "{error}");
            let expected = matches!(
                error,
                StreamError::AllDropped { .. } | StreamError::NoStep { .. }
            );
            prop_assert!(expected, "{error}");
            Ok(None)
        }
    }
}

fn sizes_differ_by_one_at_most(dealing: &Dealing) -> bool {
    dealing.iter().all(|ranks| {
        let len = |by: fn(std::slice::Iter<'_, Vec<Entry>>) -> Option<usize>| {
            by(ranks.iter()).unwrap_or(0)
        };
        len(|r| r.map(Vec::len).max()) - len(|r| r.map(Vec::len).min()) <= 1
    })
}

/// What every global batch holds, whoever reads it.
fn batches(dealing: &Dealing) -> Vec<Vec<Entry>> {
    let merged = |ranks: &Vec<Vec<Entry>>| {
        let mut batch = ranks.concat();
        batch.sort_unstable();
        batch
    };
    dealing.iter().map(merged).collect()
}

/// torch: `DistributedSampler` gives a rank a list, `DataLoader` cuts it into batches.
fn torch_lists(spec: &LayoutSpec, rank: u32) -> Vec<Vec<Entry>> {
    let list: Vec<Entry> = dealt_list(spec)
        .into_iter()
        .skip(rank as usize)
        .step_by(spec.world as usize)
        .collect();
    let batch = (spec.global_batch / spec.world) as usize;
    let batches = list
        .chunks(batch)
        .filter(|local| !spec.drop_last || local.len() == batch);
    batches.map(<[Entry]>::to_vec).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn ranks_are_dealt_what_the_plain_lists_say(spec in specs()) {
        let Some(layout) = layout_of(spec)? else { return Ok(()) };
        let reference = naive(&spec, spec.world);
        prop_assert_eq!(of_layout(&layout), reference.clone());
        prop_assert_eq!((layout.world(), layout.global_batch()), (spec.world, spec.global_batch));
        for rank in 0..spec.world {
            let len: usize = reference.iter().map(|ranks| ranks[rank as usize].len()).sum();
            prop_assert_eq!(layout.rank_len(Rank(rank)), len as u64);
        }
        let mut from = 0;
        for (step, ranks) in (0..).map(Step).zip(&reference) {
            let end = from + ranks.concat().len() as u64;
            prop_assert_eq!(layout.batch(step), Range { start: from, end });
            from = end;
        }
    }

    #[test]
    fn a_batch_that_the_world_divides_is_dealt_as_torch_does(spec in specs(), local_batch in 1_u32..6, drop: bool) {
        let tail = if drop { Tail::Drop } else { Tail::Pad };
        let spec = LayoutSpec { global_batch: spec.world * local_batch, deal: Deal::Strided, tail, ..spec };
        let Some(layout) = layout_of(spec)? else { return Ok(()) };
        let dealing = of_layout(&layout);
        for rank in 0..spec.world {
            let ours: Vec<_> = dealing.iter().map(|ranks| ranks[rank as usize].clone()).collect();
            prop_assert_eq!(ours, torch_lists(&spec, rank));
        }
    }

    #[test]
    fn a_position_is_found_in_the_slot_it_was_dealt_to(spec in specs(), world in 1_u32..12) {
        let Some(layout) = layout_of(spec)? else { return Ok(()) };
        for layout in [layout.clone(), layout.redealt(world).expect("a layout of another world")] {
            let mut slots = vec![None; spec.positions as usize];
            for (step, ranks) in (0..).map(Step).zip(of_layout(&layout)) {
                for (rank, share) in (0..).map(Rank).zip(ranks) {
                    for (index, (position, padded)) in (0..).zip(share) {
                        if !padded {
                            slots[position as usize] = Some(Seat { rank, step, index });
                        }
                    }
                }
            }
            let found: Vec<_> = (0..spec.positions).map(|p| layout.slot(Position(p))).collect();
            prop_assert_eq!(found, slots);
            prop_assert_eq!(layout.slot(Position(spec.positions)), None);
        }
    }

    #[test]
    fn another_world_is_dealt_the_same_global_batches(spec in specs(), world in 1_u32..12, third in 1_u32..12) {
        let Some(layout) = layout_of(spec)? else { return Ok(()) };
        let redealt = layout.redealt(world).expect("a layout of another world");
        let before = of_layout(&layout);
        let after = of_layout(&redealt);
        prop_assert_eq!(batches(&before), batches(&after));
        prop_assert_eq!(after.clone(), naive(&spec, world));
        prop_assert!(sizes_differ_by_one_at_most(&before) && sizes_differ_by_one_at_most(&after));
        prop_assert_eq!(redealt.redealt(third), layout.redealt(third));
        prop_assert_eq!(redealt.redealt(spec.world), Ok(layout));
    }

    #[test]
    fn a_filled_tail_leaves_no_rank_without_a_sample(spec in specs(), world in 1_u32..12) {
        let spec = LayoutSpec { tail: Tail::Pad, ..spec };
        let Some(layout) = layout_of(spec)? else { return Ok(()) };
        let redealt = layout.redealt(world).expect("a layout of another world");
        let filled = redealt.filled();
        let real = |layout: &Layout| batches(&of_layout(layout)).into_iter().map(|batch| {
            batch.into_iter().filter(|(_, padded)| !padded).collect::<Vec<_>>()
        }).collect::<Vec<_>>();
        prop_assert_eq!(real(&filled), real(&redealt), "nothing but padding is added");
        if spec.global_batch >= world {
            prop_assert!(of_layout(&filled).iter().flatten().all(|share| !share.is_empty()));
        }
        if spec.global_batch.is_multiple_of(spec.world) {
            prop_assert_eq!(layout.filled(), layout, "the world that it began with has nothing to fill");
        }
    }

    #[test]
    fn nothing_is_lost_or_repeated_where_nothing_is_padded_or_dropped(spec in specs()) {
        let spec = LayoutSpec { tail: Tail::Exact, drop_last: false, ..spec };
        let layout = Layout::new(spec).expect("a layout");
        let mut all = batches(&of_layout(&layout)).concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..spec.positions).map(|p| (p, false)).collect::<Vec<_>>());
    }
}

#[test]
fn large_numbers_do_not_overflow() {
    let positions = u64::from(u32::MAX);
    for (deal, global_batch) in [
        (Deal::Strided, u32::MAX),
        (Deal::Blocked, u32::MAX),
        (Deal::Blocked, 1),
    ] {
        let world = u32::MAX - 1;
        let spec = LayoutSpec {
            positions,
            world,
            global_batch,
            deal,
            tail: Tail::Exact,
            drop_last: false,
        };
        let layout = Layout::new(spec).expect("a layout");
        let slot = layout.slot(Position(positions - 1)).expect("a slot");
        let dealt = layout.dealt(slot.rank, slot.step, slot.index);
        assert_eq!(
            (dealt.position, dealt.padded),
            (Position(positions - 1), false)
        );
    }
}
