//! Every policy's plan in one piece, by plain loops over everything: what the two phases must come to.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foresee_core::assign;
use foresee_core::foresight::Favourite;
use foresee_core::homes::{Home, Homes};
use foresee_core::ids::{Epoch, Position, Rank, SampleId, Step, TierId};
use foresee_core::model::{Paces, Scope};
use foresee_core::policy::cover::{cover, even_share};
use foresee_core::policy::{Assignment, Brief, Delivery, Keeping, Part, Routes};
use foresee_core::stream::{Feistel, Orders};
use foresee_core::units::Bytes;

/// A rank's part, written out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    pub(crate) orders: Vec<Vec<u32>>,
    pub(crate) delivery: Delivery,
    pub(crate) routes: Routes,
    /// By tier: reads and bytes, and whether all ranks do the same.
    pub(crate) filling: Option<(Vec<(u64, u64)>, bool)>,
    pub(crate) lockstep_epochs: u32,
    pub(crate) keeping: Kept,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    Nothing,
    Fixed(BTreeMap<u32, u8>, Vec<Vec<u32>>),
    Homes(BTreeMap<u32, (u32, u8)>, Vec<u64>),
    Reuse(Vec<u64>),
}

pub(crate) fn written_orders(orders: &Orders) -> Vec<Vec<u32>> {
    let epochs = (0..orders.epochs()).map(|epoch| orders.epoch(Epoch(epoch)));
    epochs
        .map(|order| {
            (0..order.len())
                .map(|at| order.sample(Position(at)).0)
                .collect()
        })
        .collect()
}

fn written_homes(homes: &Homes) -> BTreeMap<u32, (u32, u8)> {
    let home = |sample| {
        let home = homes.get(SampleId(sample))?;
        Some((sample, (home.rank.0, home.tier.0)))
    };
    (0..homes.len()).filter_map(home).collect()
}

pub(crate) fn written(part: &Part) -> Written {
    let numbers = |room: &[Bytes]| room.iter().map(|bytes| bytes.0).collect();
    let keeping = match &part.keeping {
        Keeping::Nothing => Kept::Nothing,
        Keeping::Fixed { keep, prefetch } => {
            let list = |list: &Vec<SampleId>| list.iter().map(|sample| sample.0).collect();
            Kept::Fixed(
                keep.iter()
                    .map(|(sample, tier)| (sample.0, tier.0))
                    .collect(),
                prefetch.iter().map(list).collect(),
            )
        }
        Keeping::Homes { homes, spare, .. } => Kept::Homes(written_homes(homes), numbers(spare)),
        Keeping::Reuse { room, .. } => Kept::Reuse(numbers(room)),
    };
    let filling = part.filling.as_ref().map(|filling| {
        let loads = filling.loads.iter().map(|load| (load.reads, load.bytes.0));
        (loads.collect(), filling.same)
    });
    Written {
        orders: written_orders(&part.orders),
        delivery: part.delivery,
        routes: part.routes,
        filling,
        lockstep_epochs: part.lockstep_epochs,
        keeping,
    }
}

/// Space in tiers, by tier and by the ranks that share it.
struct Space<'a> {
    brief: &'a Brief,
    free: BTreeMap<(u8, Vec<u32>), u64>,
}

fn sharers(brief: &Brief, scope: Scope, rank: u32) -> Vec<u32> {
    let shares = |other: &u32| match scope {
        Scope::Rank => *other == rank,
        Scope::Host => brief.hosts.host(Rank(*other)) == brief.hosts.host(Rank(rank)),
        Scope::Global => true,
    };
    (0..brief.hosts.ranks()).filter(shares).collect()
}

fn tiers(brief: &Brief) -> u8 {
    brief.system.tiers.len() as u8
}

impl<'a> Space<'a> {
    fn new(brief: &'a Brief, only: Option<u8>) -> Self {
        let mut free = BTreeMap::new();
        for tier in 1..tiers(brief) {
            for rank in 0..brief.hosts.ranks() {
                let together = sharers(brief, brief.system.tier(TierId(tier)).scope, rank);
                let capacity = brief.capacity(Rank(together[0]), TierId(tier)).0;
                let counts = only.is_none_or(|only| only == tier);
                free.insert((tier, together), if counts { capacity } else { 0 });
            }
        }
        Self { brief, free }
    }

    fn key(&self, rank: u32, tier: u8) -> (u8, Vec<u32>) {
        let scope = self.brief.system.tier(TierId(tier)).scope;
        (tier, sharers(self.brief, scope, rank))
    }

    fn free(&self, rank: u32, tier: u8) -> u64 {
        self.free[&self.key(rank, tier)]
    }

    fn take(&mut self, rank: u32, tier: u8, bytes: u64) -> bool {
        let key = self.key(rank, tier);
        let free = self.free.get_mut(&key).unwrap();
        let fits = *free >= bytes;
        if fits {
            *free -= bytes;
        }
        fits
    }

    fn first_fit(&mut self, rank: u32, bytes: u64) -> Option<u8> {
        (1..tiers(self.brief)).find(|&tier| self.take(rank, tier, bytes))
    }
}

fn size(brief: &Brief, sample: u32) -> u64 {
    brief.catalog.size(SampleId(sample)).0
}

/// What some ranks use, in the order of the steps.
fn accesses(brief: &Brief, ranks: &[u32]) -> Vec<(u32, u32)> {
    let mut all = Vec::new();
    for epoch in 0..brief.orders.epochs() {
        let order = brief.orders.epoch(Epoch(epoch));
        for step in 0..brief.layout.steps() {
            for &rank in ranks {
                for index in 0..brief.layout.local_len(Rank(rank), Step(step)) {
                    let dealt = brief.layout.dealt(Rank(rank), Step(step), index);
                    all.push((rank, order.sample(dealt.position).0));
                }
            }
        }
    }
    all
}

/// A plan under way: the same for all ranks, but for what they keep.
struct Draft {
    common: Written,
    keep: Vec<BTreeMap<u32, u8>>,
}

impl Draft {
    fn new(brief: &Brief, routes: Routes) -> Self {
        Self {
            common: Written {
                orders: written_orders(&brief.orders),
                delivery: Delivery::Ahead,
                routes,
                filling: None,
                lockstep_epochs: 0,
                keeping: Kept::Nothing,
            },
            keep: vec![BTreeMap::new(); brief.hosts.ranks() as usize],
        }
    }

    fn fixed(self) -> Vec<Written> {
        let fixed = |keep| Written {
            keeping: Kept::Fixed(keep, Vec::new()),
            ..self.common.clone()
        };
        self.keep.into_iter().map(fixed).collect()
    }

    fn filled(self, brief: &Brief, same: bool) -> Vec<Written> {
        let load = |keep: &BTreeMap<u32, u8>, tier| {
            let there = keep.iter().filter(|(_, at)| **at == tier);
            let bytes = there.clone().map(|(sample, _)| size(brief, *sample)).sum();
            (there.count() as u64, bytes)
        };
        let fill = |written: Written| {
            let Kept::Fixed(keep, _) = &written.keeping else {
                panic!("filled tiers are fixed")
            };
            let loads = (0..tiers(brief)).map(|tier| load(keep, tier)).collect();
            Written {
                filling: Some((loads, same)),
                ..written
            }
        };
        self.fixed().into_iter().map(fill).collect()
    }

    fn homes(&self, brief: &Brief) -> Arc<Homes> {
        let mut homes = Homes::none(brief.catalog.len());
        for (rank, keep) in self.keep.iter().enumerate() {
            for (&sample, &tier) in keep {
                let home = Home {
                    rank: Rank(rank as u32),
                    tier: TierId(tier),
                };
                homes.set(SampleId(sample), Some(home));
            }
        }
        Arc::new(homes)
    }

    /// Deals batches by holder.
    fn redeal(&mut self, brief: &Brief) {
        let homes = self.homes(brief);
        self.common.orders = written_orders(&assign::local(&brief.orders, &brief.layout, &homes));
    }

    fn is_held(&self, sample: u32) -> bool {
        self.keep.iter().any(|keep| keep.contains_key(&sample))
    }
}

/// The plan of a policy for all ranks; none where it cannot run the job.
pub(crate) fn plan(policy: &str, brief: &Brief) -> Option<Vec<Written>> {
    let refuses_local = [
        "deepio-opportunistic",
        "parallel-staging",
        "monarch",
        "nopfs",
        "lobster",
    ];
    if brief.assignment == Assignment::Local && refuses_local.contains(&policy) {
        return None;
    }
    let cacheless = |delivery| {
        let mut draft = Draft::new(brief, Routes::Source);
        draft.common.delivery = delivery;
        vec![draft.common; brief.hosts.ranks() as usize]
    };
    Some(match policy {
        "perfect" => cacheless(Delivery::Instant),
        "naive" => cacheless(Delivery::OnDemand),
        "staging-buffer" => cacheless(Delivery::Ahead),
        "deepio-ordered" => spread(brief, Some(1), Delivery::AheadIfHeld),
        "distributed-cache" => spread(brief, None, Delivery::Ahead),
        "locality-aware" => {
            let mut draft = spread_out(brief, None);
            draft.redeal(brief);
            draft.filled(brief, false)
        }
        "deepio-opportunistic" => opportunistic(brief)?,
        "parallel-staging" => staged(brief)?,
        "lbann-dynamic" => first_read(brief)?,
        "lbann-preload" => {
            let placed = spread_out(brief, Some(1));
            let all = (0..brief.catalog.len()).all(|sample| placed.is_held(sample));
            if !all {
                return None;
            }
            spread(brief, Some(1), Delivery::Ahead)
        }
        "monarch" => monarch(brief),
        "nopfs" => nopfs(brief),
        "lobster" => lobster(brief),
        "foresee" => foresee(brief)?,
        other => panic!("{other} has no reference"),
    })
}

fn spread_out(brief: &Brief, only: Option<u8>) -> Draft {
    let ranks = brief.hosts.ranks();
    let mut space = Space::new(brief, only);
    let mut draft = Draft::new(brief, Routes::Caches);
    for sample in 0..brief.catalog.len() {
        for offset in 0..ranks {
            let rank = (sample % ranks + offset) % ranks;
            if let Some(tier) = space.first_fit(rank, size(brief, sample)) {
                draft.keep[rank as usize].insert(sample, tier);
                break;
            }
        }
    }
    draft
}

fn spread(brief: &Brief, only: Option<u8>, delivery: Delivery) -> Vec<Written> {
    let mut draft = spread_out(brief, only);
    draft.common.delivery = delivery;
    if brief.assignment == Assignment::Local {
        draft.redeal(brief);
    }
    draft.filled(brief, false)
}

/// Every access of a rank that `replace` names gets the next of the rank's own samples.
fn substituted(
    brief: &Brief,
    own: &[Vec<u32>],
    replace: impl Fn(usize, u32) -> bool,
) -> Vec<Vec<u32>> {
    let mut orders = written_orders(&brief.orders);
    for (epoch, order) in orders.iter_mut().enumerate() {
        for (rank, own) in own.iter().enumerate().filter(|(_, own)| !own.is_empty()) {
            let key = (epoch as u64) << 32 | rank as u64;
            let shuffle = Feistel::new(own.len() as u32, key);
            let mut turn = 0;
            for step in 0..brief.layout.steps() {
                let rank = Rank(rank as u32);
                for index in 0..brief.layout.local_len(rank, Step(step)) {
                    let dealt = brief.layout.dealt(rank, Step(step), index);
                    let slot = &mut order[dealt.position.0 as usize];
                    if replace(rank.index(), *slot) {
                        *slot = own[shuffle.at(turn % own.len() as u32) as usize];
                        turn += 1;
                    }
                }
            }
        }
    }
    orders
}

fn opportunistic(brief: &Brief) -> Option<Vec<Written>> {
    let mut draft = spread_out(brief, Some(1));
    let own: Vec<Vec<u32>> = draft
        .keep
        .iter()
        .map(|keep| keep.keys().copied().collect())
        .collect();
    let all = (0..brief.catalog.len()).all(|sample| draft.is_held(sample));
    if !all && own.iter().any(Vec::is_empty) {
        return None;
    }
    let orders = substituted(brief, &own, |_, sample| !draft.is_held(sample));
    draft.common.orders = orders;
    Some(draft.filled(brief, false))
}

fn staged(brief: &Brief) -> Option<Vec<Written>> {
    let samples = brief.catalog.len();
    let ranks = brief.hosts.ranks();
    let mut draft = Draft::new(brief, Routes::Own);
    let mut own = Vec::new();
    for rank in 0..ranks {
        let mut space = Space::new(brief, None);
        for ((_, together), free) in &mut space.free {
            *free /= together.len() as u64;
        }
        let start = (u64::from(rank) * u64::from(samples) / u64::from(ranks)) as u32;
        let mut list = Vec::new();
        for sample in (start..samples).chain(0..start) {
            let Some(tier) = space.first_fit(rank, size(brief, sample)) else {
                break;
            };
            draft.keep[rank as usize].insert(sample, tier);
            list.push(sample);
        }
        own.push(list);
    }
    if own.iter().any(Vec::is_empty) {
        return None;
    }
    let same = own.iter().all(|own| own.len() == samples as usize);
    if !same {
        draft.common.orders = substituted(brief, &own, |rank, sample| {
            !draft.keep[rank].contains_key(&sample)
        });
    }
    Some(draft.filled(brief, same))
}

fn first_read(brief: &Brief) -> Option<Vec<Written>> {
    if brief.system.tiers.len() < 2 || brief.catalog.total() > brief.total_capacity(TierId(1)) {
        return None;
    }
    let all: Vec<u32> = (0..brief.hosts.ranks()).collect();
    let mut accesses = accesses(brief, &all);
    let dealt = u64::from(brief.layout.steps()) * u64::from(brief.layout.global_batch());
    if dealt >= brief.orders.len() {
        accesses.truncate(accesses.len() / brief.orders.epochs() as usize);
    }
    let mut space = Space::new(brief, Some(1));
    let mut draft = Draft::new(brief, Routes::Caches);
    draft.common.lockstep_epochs = 1;
    for (rank, sample) in accesses {
        if !draft.is_held(sample) && space.take(rank, 1, size(brief, sample)) {
            draft.keep[rank as usize].insert(sample, 1);
        }
    }
    if brief.assignment == Assignment::Local {
        draft.redeal(brief);
    }
    Some(draft.fixed())
}

fn monarch(brief: &Brief) -> Vec<Written> {
    let mut space = Space::new(brief, None);
    let mut draft = Draft::new(brief, Routes::Host);
    let mut hosts: Vec<Vec<u32>> = (0..brief.hosts.ranks())
        .map(|rank| sharers(brief, Scope::Host, rank))
        .collect();
    hosts.dedup();
    for host in hosts {
        let mut seen = BTreeSet::new();
        for (rank, sample) in accesses(brief, &host) {
            if seen.insert(sample)
                && let Some(tier) = space.first_fit(rank, size(brief, sample))
            {
                draft.keep[rank as usize].insert(sample, tier);
            }
        }
    }
    draft.fixed()
}

fn nopfs(brief: &Brief) -> Vec<Written> {
    let mut space = Space::new(brief, None);
    let mut draft = Draft::new(brief, Routes::Cheapest);
    let lists = vec![Vec::new(); brief.system.tiers.len()];
    let mut prefetch: Vec<Vec<Vec<u32>>> = vec![lists; brief.hosts.ranks() as usize];
    let scope = |tier: &u8| brief.system.tier(TierId(*tier)).scope;
    let all: Vec<u8> = (1..tiers(brief)).collect();
    for group in all.chunk_by(|a, b| scope(a) == scope(b)) {
        let mut domains: Vec<Vec<u32>> = (0..brief.hosts.ranks())
            .map(|rank| sharers(brief, scope(&group[0]), rank))
            .collect();
        domains.dedup();
        for members in domains {
            let mut uses: BTreeMap<u32, usize> = BTreeMap::new();
            let mut first: Vec<(u32, u32)> = Vec::new();
            for (rank, sample) in accesses(brief, &members) {
                let count = uses.entry(sample).or_insert(0);
                if *count == 0 {
                    first.push((sample, rank));
                }
                *count += 1;
            }
            let mut by_frequency = first.clone();
            by_frequency.sort_by_key(|(sample, _)| Reverse(uses[sample]));
            for (sample, rank) in by_frequency {
                let holds = |member: &u32| draft.keep[*member as usize].contains_key(&sample);
                if members.iter().any(holds) {
                    continue;
                }
                let tier = group
                    .iter()
                    .find(|tier| space.take(rank, **tier, size(brief, sample)));
                if let Some(tier) = tier {
                    draft.keep[rank as usize].insert(sample, *tier);
                }
            }
            for (sample, rank) in first {
                let tier = draft.keep[rank as usize].get(&sample);
                if let Some(tier) = tier.filter(|tier| group.contains(tier)) {
                    prefetch[rank as usize][usize::from(*tier)].push(sample);
                }
            }
        }
    }
    let mut plan = draft.fixed();
    for (written, lists) in plan.iter_mut().zip(prefetch) {
        if let Kept::Fixed(_, prefetch) = &mut written.keeping {
            *prefetch = lists;
        }
    }
    plan
}

fn lobster(brief: &Brief) -> Vec<Written> {
    let draft = Draft::new(brief, Routes::Cheapest);
    let room = |rank| {
        let part = |tier| {
            let together = sharers(brief, brief.system.tier(TierId(tier)).scope, rank);
            brief.capacity(Rank(rank), TierId(tier)).0 / together.len() as u64
        };
        let mut room: Vec<u64> = (0..tiers(brief)).map(part).collect();
        // The staging buffer keeps nothing.
        room[0] = 0;
        room
    };
    let part = |rank| Written {
        keeping: Kept::Reuse(room(rank)),
        ..draft.common.clone()
    };
    (0..brief.hosts.ranks()).map(part).collect()
}

/// Who uses each sample most, or, for local batches, first.
fn favourites(brief: &Brief) -> Vec<Favourite> {
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); brief.catalog.len() as usize];
    for epoch in 0..brief.orders.epochs() {
        let order = brief.orders.epoch(Epoch(epoch));
        for sample in 0..brief.catalog.len() {
            let position = order.position(SampleId(sample));
            let slot = position.and_then(|position| brief.layout.slot(position));
            users[sample as usize].extend(slot.map(|slot| slot.rank.0));
        }
    }
    let count = |users: &[u32], rank: u32| users.iter().filter(|user| **user == rank).count();
    let favourite = |users: Vec<u32>| {
        let best = match brief.assignment {
            Assignment::Local => users.first(),
            // The last of equal ones wins a `max`, and the first user is wanted.
            Assignment::Order => users.iter().rev().max_by_key(|&&rank| count(&users, rank)),
        };
        let times = match (brief.assignment, best) {
            (_, None) => 0,
            (Assignment::Local, Some(_)) => 1,
            (Assignment::Order, Some(best)) => count(&users, *best) as u32,
        };
        Favourite {
            rank: Rank(best.copied().unwrap_or(0)),
            uses: times,
        }
    };
    users.into_iter().map(favourite).collect()
}

fn foresee(brief: &Brief) -> Option<Vec<Written>> {
    let ranks = brief.hosts.ranks();
    let mut draft = Draft::new(brief, Routes::Caches);
    let (homes, space) = if ranks == 1 {
        sole(brief)?
    } else if brief.peers {
        let favourites = favourites(brief);
        if brief.catalog.common_size().is_some() {
            covered(brief, &favourites)
        } else {
            // Closing gaps has no plain form; what it is given is what is compared.
            let (homes, _) = cover(brief, &Paces::of(&brief.system), &favourites);
            let homes = written_homes(&homes);
            let space = left(brief, &homes);
            (homes, space)
        }
    } else if brief.assignment == Assignment::Local {
        return None;
    } else {
        (BTreeMap::new(), Space::new(brief, None))
    };
    for (&sample, &(rank, tier)) in &homes {
        draft.keep[rank as usize].insert(sample, tier);
    }
    if brief.assignment == Assignment::Local && ranks > 1 {
        draft.redeal(brief);
    }
    let left_over = |rank| {
        let own = |tier: u8| {
            let is_own = tier > 0 && brief.system.tier(TierId(tier)).scope == Scope::Rank;
            if is_own { space.free(rank, tier) } else { 0 }
        };
        (0..tiers(brief)).map(own).collect()
    };
    let part = |rank| Written {
        keeping: Kept::Homes(homes.clone(), left_over(rank)),
        ..draft.common.clone()
    };
    Some((0..ranks).map(part).collect())
}

type Found<'a> = (BTreeMap<u32, (u32, u8)>, Space<'a>);

/// What is left beside the homes.
fn left<'a>(brief: &'a Brief, homes: &BTreeMap<u32, (u32, u8)>) -> Space<'a> {
    let mut space = Space::new(brief, None);
    for (&sample, &(rank, tier)) in homes {
        assert!(space.take(rank, tier, size(brief, sample)), "homes fit");
    }
    space
}

/// A rank alone: what it holds, then what it uses first; only where no gaps are to be closed.
fn sole(brief: &Brief) -> Option<Found<'_>> {
    let mut space = Space::new(brief, None);
    let mut homes = BTreeMap::new();
    for (sample, home) in brief.held.iter() {
        if !homes.contains_key(&sample.0) && space.take(0, home.tier.0, size(brief, sample.0)) {
            homes.insert(sample.0, (0, home.tier.0));
        }
    }
    let start = brief.start;
    let first = u64::from(start.step.0) * u64::from(brief.layout.global_batch());
    for epoch in start.epoch.0..brief.orders.epochs().min(start.epoch.0 + 2) {
        let order = brief.orders.epoch(Epoch(epoch));
        let from = if epoch == start.epoch.0 { first } else { 0 };
        for position in from..order.len() {
            let sample = order.sample(Position(position)).0;
            if let Some(tier) = (!homes.contains_key(&sample))
                .then(|| space.first_fit(0, size(brief, sample)))
                .flatten()
            {
                homes.insert(sample, (0, tier));
            }
        }
    }
    let gaps = brief.catalog.common_size().is_none() && homes.len() < brief.catalog.len() as usize;
    (!gaps).then_some((homes, space))
}

/// Homes for samples of one size, by looking at all ranks for each.
fn covered<'a>(brief: &'a Brief, favourites: &[Favourite]) -> Found<'a> {
    let mut space = Space::new(brief, None);
    let mut homes: BTreeMap<u32, (u32, u8)> = BTreeMap::new();
    let mut order: Vec<u32> = (0..brief.catalog.len())
        .filter(|sample| favourites[*sample as usize].uses > 0)
        .collect();
    order.sort_by_key(|sample| Reverse(favourites[*sample as usize].uses));
    let used = order.iter().map(|sample| size(brief, *sample)).sum();
    let limit = even_share(brief, Bytes(used)).map_or(u64::MAX, |even| 2 * even.0);
    let at_home = |homes: &BTreeMap<u32, (u32, u8)>, rank: u32| -> u64 {
        let there = homes.iter().filter(|(_, home)| home.0 == rank);
        there.map(|(sample, _)| size(brief, *sample)).sum()
    };
    for &sample in &order {
        let favourite = favourites[sample as usize].rank.0;
        let mut holders: Vec<Home> = brief.held.holders(SampleId(sample)).collect();
        holders.sort_by_key(|holder| {
            let rank = holder.rank.0;
            (rank != favourite, at_home(&homes, rank), rank)
        });
        let holder = holders
            .iter()
            .find(|holder| space.take(holder.rank.0, holder.tier.0, size(brief, sample)));
        if let Some(holder) = holder {
            homes.insert(sample, (holder.rank.0, holder.tier.0));
        }
    }
    for &sample in &order {
        if homes.contains_key(&sample) {
            continue;
        }
        let bytes = size(brief, sample);
        let favourite = favourites[sample as usize].rank.0;
        let usable = |rank: u32, tier: u8| {
            let allowed = limit.saturating_sub(at_home(&homes, rank));
            space.free(rank, tier).min(allowed)
        };
        let afar = |tier: u8| {
            let ranks = 0..brief.hosts.ranks();
            let best = ranks.max_by_key(|rank| (usable(*rank, tier), Reverse(*rank)));
            best.filter(|rank| usable(*rank, tier) >= bytes)
                .map(|rank| (rank, tier))
        };
        let mut choices = Vec::new();
        for tier in 1..tiers(brief) {
            choices.extend((usable(favourite, tier) >= bytes).then_some((favourite, tier)));
            choices.extend(afar(tier).filter(|_| is_worth_afar(brief, tier)));
        }
        choices.extend((1..tiers(brief)).filter_map(afar));
        for tier in 1..tiers(brief) {
            let roomiest = (0..brief.hosts.ranks())
                .max_by_key(|rank| (space.free(*rank, tier), Reverse(*rank)));
            let ranks = [Some(favourite), roomiest].into_iter().flatten();
            choices.extend(
                ranks
                    .filter(|rank| space.free(*rank, tier) >= bytes)
                    .map(|rank| (rank, tier)),
            );
        }
        if let Some(&(rank, tier)) = choices.first() {
            assert!(space.take(rank, tier, bytes));
            homes.insert(sample, (rank, tier));
        }
    }
    (homes, space)
}

fn is_worth_afar(brief: &Brief, tier: u8) -> bool {
    let rate = |tier: u8| {
        let tier = brief.system.tier(TierId(tier));
        tier.read.at(tier.threads).0 / f64::from(tier.threads)
    };
    let next = (tier + 1..tiers(brief)).find(|next| {
        let ranks = 0..brief.hosts.ranks();
        ranks
            .into_iter()
            .any(|rank| brief.capacity(Rank(rank), TierId(*next)).0 > 0)
    });
    next.is_some_and(|next| rate(tier).min(brief.system.network.0) > rate(next))
}
