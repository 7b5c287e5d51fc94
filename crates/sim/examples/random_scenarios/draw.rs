//! Random scenarios, and how `foresee` fares in them beside the other policies. Drawn from a number, so that each can be
//! drawn again; all samples of a scenario are of one size, for which the source minimum is exact.

use std::path::Path;

use foresee_core::policy::{POLICIES, Policy, by_name, lower_bound};
use foresee_sim::job::Job;
use foresee_sim::outcome::Outcome;
use foresee_sim::scenario::Template;
use foresee_sim::{compare, simulate};

/// One tier that keeps samples.
#[derive(Clone, Debug)]
pub(crate) struct Tier {
    capacity_samples: u64,
    scope: &'static str,
    threads: u32,
    read_mb_per_s: u32,
    write_mb_per_s: u32,
}

/// Staged samples up to which a read that takes long cannot be hidden.
const FEW_STAGED: u64 = 16;

/// Staged samples that hide it.
const LARGE_STAGING: u64 = 200;

/// Why `foresee` can take longer than a policy that reads more from the source.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// A tier or the network is slower than the source, as told here.
    SlowOrigin(String),
    /// The staging buffer holds so few samples, and some have no home.
    FewStaged(u64),
}

impl std::fmt::Display for Cause {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SlowOrigin(told) => out.write_str(told),
            Self::FewStaged(samples) => write!(out, "{samples} staged"),
        }
    }
}

/// A drawn scenario.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What it was drawn from.
    pub(crate) seed: u64,
    ranks: u32,
    ranks_per_host: u32,
    local_batch: u32,
    epochs: u32,
    samples: u32,
    size_kb: u32,
    compute_mb_per_s: u32,
    preprocess_mb_per_s: u32,
    network_mb_per_s: u32,
    source_link_mb_per_s: u32,
    source_one_mb_per_s: u32,
    source_readers: u32,
    source_many_mb_per_s: u32,
    source_latency_ms: u32,
    contention: &'static str,
    extrapolate: &'static str,
    staging_samples: u64,
    staging_threads: u32,
    tiers: Vec<Tier>,
}

/// Numbers from a seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Both ends included.
    fn between(&mut self, low: u32, high: u32) -> u32 {
        low + (self.next() % u64::from(high - low + 1)) as u32
    }

    /// Small and large numbers alike, up to a factor.
    fn across(&mut self, low: u32, high: u32) -> u32 {
        let span = f64::from(high) / f64::from(low);
        (f64::from(low) * span.powf(self.share())).round() as u32
    }

    fn divisor(&mut self, of: u32) -> u32 {
        let divisors: Vec<u32> = (1..=of)
            .filter(|number| of.is_multiple_of(*number))
            .collect();
        divisors[self.next() as usize % divisors.len()]
    }

    fn one_of(&mut self, choices: [&'static str; 2]) -> &'static str {
        choices[(self.next() % 2) as usize]
    }
}

impl Case {
    /// The scenario of a number.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut draw = Draw(seed.wrapping_mul(0x2545_f491_4f6c_dd1d));
        let ranks = draw.between(1, 8);
        let ranks_per_host = draw.divisor(ranks);
        let samples = draw.between(200, 1200);
        let source_one_mb_per_s = draw.across(20, 1000);
        let source_readers = draw.between(2, 16);
        let gain = 1.0 + draw.share() * f64::from(source_readers - 1);
        let mut case = Self {
            seed,
            ranks,
            ranks_per_host,
            local_batch: draw.between(1, 16),
            epochs: draw.between(2, 6),
            samples,
            size_kb: draw.across(100, 2000),
            compute_mb_per_s: draw.across(50, 2000),
            preprocess_mb_per_s: draw.across(50, 2000),
            network_mb_per_s: draw.across(50, 10_000),
            source_link_mb_per_s: draw.across(100, 5000),
            source_one_mb_per_s,
            source_readers,
            source_many_mb_per_s: (f64::from(source_one_mb_per_s) * gain) as u32,
            source_latency_ms: draw.between(0, 1) * draw.between(1, 10),
            contention: draw.one_of(["ranks", "reads"]),
            extrapolate: draw.one_of(["regression", "clamp"]),
            staging_samples: u64::from(draw.across(8, 200)),
            staging_threads: draw.between(1, 8),
            tiers: Vec::new(),
        };
        // All ranks together keep from nothing to twice the dataset, divided among the tiers.
        let mut share_left = 2.0 * draw.share();
        let count = draw.between(1, 2);
        for tier in 1..=count {
            let share = if tier == count {
                share_left
            } else {
                share_left * draw.share()
            };
            share_left -= share;
            let tier = case.tier(&mut draw, share);
            case.tiers.push(tier);
        }
        // Fastest first, as scenarios have them.
        case.tiers
            .sort_by_key(|tier| std::cmp::Reverse(tier.read_mb_per_s / tier.threads));
        case
    }

    fn tier(&self, draw: &mut Draw, share: f64) -> Tier {
        let scope = draw.one_of(["rank", "host"]);
        let owners = match scope {
            "rank" => self.ranks,
            _ => self.ranks.div_ceil(self.ranks_per_host),
        };
        let read_mb_per_s = draw.across(100, 20_000);
        Tier {
            capacity_samples: (share * f64::from(self.samples) / f64::from(owners)) as u64,
            scope,
            threads: draw.between(1, 4),
            read_mb_per_s,
            write_mb_per_s: (read_mb_per_s / draw.between(1, 4)).max(50),
        }
    }

    /// The scenario as its file would be.
    pub(crate) fn text(&self) -> String {
        let staging = Tier {
            capacity_samples: self.staging_samples,
            scope: "rank",
            threads: self.staging_threads,
            read_mb_per_s: 20_000,
            write_mb_per_s: 20_000,
        };
        let kept = self.tiers.iter().enumerate();
        let kept = kept.map(|(index, tier)| self.tier_text(&format!("tier{}", index + 1), tier));
        let parts = [
            self.job_text(),
            self.system_text(),
            self.tier_text("staging", &staging),
        ];
        parts.into_iter().chain(kept).collect()
    }

    fn job_text(&self) -> String {
        format!(
            "name = \"random-{}\"\n[job]\nranks = {}\nranks_per_host = {}\nglobal_batch = {}\nepochs = {}\nseed = {}\n\
             compute_mb_per_s = {}\npreprocess_mb_per_s = {}\n[dataset]\nsamples = {}\nsize_mb = {{ fixed = {:?} }}\n",
            self.seed,
            self.ranks,
            self.ranks_per_host,
            self.ranks * self.local_batch,
            self.epochs,
            self.seed % 1000,
            self.compute_mb_per_s,
            self.preprocess_mb_per_s,
            self.samples,
            self.size_mb(),
        )
    }

    fn system_text(&self) -> String {
        format!(
            "[system]\nnetwork_mb_per_s = {}\nsource_link_mb_per_s = {}\nsource_read_mb_per_s = {{ 1 = {}, {} = {} }}\n\
             source_latency_ms = {}\ncontention = \"{}\"\nextrapolate = \"{}\"\n",
            self.network_mb_per_s,
            self.source_link_mb_per_s,
            self.source_one_mb_per_s,
            self.source_readers,
            self.source_many_mb_per_s,
            self.source_latency_ms,
            self.contention,
            self.extrapolate,
        )
    }

    fn tier_text(&self, name: &str, tier: &Tier) -> String {
        format!(
            "[[system.tier]]\nname = \"{name}\"\ncapacity_mb = {:?}\nscope = \"{}\"\nthreads = {threads}\n\
             read_mb_per_s = {{ {threads} = {} }}\nwrite_mb_per_s = {{ {threads} = {} }}\n",
            tier.capacity_samples as f64 * self.size_mb(),
            tier.scope,
            tier.read_mb_per_s,
            tier.write_mb_per_s,
            threads = tier.threads,
        )
    }

    fn size_mb(&self) -> f64 {
        f64::from(self.size_kb) / 1000.0
    }

    /// What a lone read from the source gets, in MB/s.
    fn source_mb_per_s(&self) -> u32 {
        self.source_one_mb_per_s.min(self.source_link_mb_per_s)
    }

    /// What makes fewer source bytes cost time here, as docs/policies.md names it.
    pub(crate) fn causes(&self) -> Vec<Cause> {
        let all = [self.slow_origin(), self.few_staged()];
        all.into_iter().flatten().collect()
    }

    /// The slowest tier, or the network, if a lone read from the source gets more than one from there.
    fn slow_origin(&self) -> Option<Cause> {
        let source = self.source_mb_per_s();
        let used = self.tiers.iter().filter(|tier| tier.capacity_samples > 0);
        let tiers = used.enumerate().map(|(index, tier)| {
            let rate = tier.read_mb_per_s / self.sharers(tier);
            (format!("tier {}", index + 1), rate)
        });
        let network = (self.ranks > self.ranks_per_host)
            .then(|| ("network".to_owned(), self.network_mb_per_s));
        let (name, slowest) = tiers.chain(network).min_by_key(|(_, rate)| *rate)?;
        let told = format!("{name} {slowest} MB/s, source {source} MB/s");
        (slowest < source).then_some(Cause::SlowOrigin(told))
    }

    /// How many share what a tier's threads get together.
    fn sharers(&self, tier: &Tier) -> u32 {
        match self.contention {
            "ranks" => 1,
            _ => tier.threads,
        }
    }

    /// A staging buffer of so few samples that what has no home, and is read alone, comes late.
    fn few_staged(&self) -> Option<Cause> {
        let kept: u64 = self.tiers.iter().map(|tier| self.kept_samples(tier)).sum();
        let few = self.staging_samples <= FEW_STAGED && kept < u64::from(self.samples);
        few.then_some(Cause::FewStaged(self.staging_samples))
    }

    /// What a tier of all ranks, or hosts, keeps together.
    fn kept_samples(&self, tier: &Tier) -> u64 {
        let owners = match tier.scope {
            "rank" => self.ranks,
            _ => self.ranks.div_ceil(self.ranks_per_host),
        };
        tier.capacity_samples * u64::from(owners)
    }

    /// The same scenario without that cause: all is as fast as the source, or the staging buffer is large.
    pub(crate) fn without(&self, cause: &Cause) -> Self {
        let mut changed = self.clone();
        match cause {
            Cause::SlowOrigin(_) => {
                let source = self.source_mb_per_s();
                changed.network_mb_per_s = changed.network_mb_per_s.max(source);
                for tier in &mut changed.tiers {
                    let all = source * self.sharers(tier);
                    tier.read_mb_per_s = tier.read_mb_per_s.max(all);
                    tier.write_mb_per_s = tier.write_mb_per_s.max(all);
                }
            }
            Cause::FewStaged(_) => changed.staging_samples = LARGE_STAGING,
        }
        changed
    }

    /// Made ready to run.
    pub(crate) fn job(&self) -> Result<Job, Box<dyn std::error::Error>> {
        let template = Template::parse(Path::new("random.toml"), &self.text())?;
        Ok(Job::new(&template.with(&[])?)?)
    }
}

/// How `foresee` fared in a scenario.
pub(crate) struct Fared {
    /// The scenario.
    pub(crate) case: Case,
    /// What came of it.
    pub(crate) ours: Outcome,
    /// The best of the others that train on the whole dataset.
    pub(crate) best: Outcome,
    /// The time that no policy can beat.
    lower_bound_s: f64,
    /// The bytes that no policy can avoid to read from the source.
    source_minimum_bytes: u64,
}

impl Fared {
    /// Runs all policies.
    pub(crate) fn run(case: Case) -> Result<Self, Box<dyn std::error::Error>> {
        let job = case.job()?;
        let foresee = by_name("foresee").ok_or("the policy foresee is missing")?;
        let comparison = compare(&job, &[foresee], |_, _| ());
        let mut results = comparison.results;
        let ours = results.pop().ok_or("foresee did not run")?;
        let best = rivals()
            .map(|policy| simulate(&job, policy, |_| ()))
            .filter(|outcome| outcome.supported)
            .min_by(|a, b| seconds(a).total_cmp(&seconds(b)))
            .ok_or("no other policy ran")?;
        Ok(Self {
            case,
            ours,
            best,
            lower_bound_s: comparison.lower_bound_s,
            source_minimum_bytes: comparison.source_minimum_bytes,
        })
    }

    /// Its time by that of the best other policy.
    pub(crate) fn ratio(&self) -> f64 {
        seconds(&self.ours) / seconds(&self.best)
    }

    /// The first of the causes that are there without which it is within a factor of the best other policy.
    pub(crate) fn cause_beyond(
        &self,
        most: f64,
    ) -> Result<Option<Cause>, Box<dyn std::error::Error>> {
        for cause in self.case.causes() {
            if Self::run(self.case.without(&cause))?.ratio() <= most {
                return Ok(Some(cause));
            }
        }
        Ok(None)
    }

    fn told_causes(&self) -> String {
        let causes: Vec<String> = self.case.causes().iter().map(Cause::to_string).collect();
        causes.join("; ")
    }

    /// Whether it read no more from the source than anyone must.
    pub(crate) fn reads_the_minimum(&self) -> bool {
        self.ours.bytes["source"] == self.source_minimum_bytes
    }
}

/// The other policies that train on the whole dataset.
fn rivals() -> impl Iterator<Item = &'static dyn Policy> {
    let bound = lower_bound().name();
    POLICIES.into_iter().filter(move |policy| {
        !policy.substitutes() && policy.name() != "foresee" && policy.name() != bound
    })
}

/// How long a policy took.
fn seconds(outcome: &Outcome) -> f64 {
    outcome.total_s.unwrap_or(f64::INFINITY)
}

impl std::fmt::Display for Fared {
    /// How it fared, on a line.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{:.3} | {:.2} s | {} {:.2} s | bound {:.2} s | {} | {}",
            self.ratio(),
            seconds(&self.ours),
            self.best.policy,
            seconds(&self.best),
            self.lower_bound_s,
            self.told_causes(),
            self.case
        )
    }
}

impl std::fmt::Display for Case {
    /// What matters for the time, on a line.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "#{} {} N {}/{} net {} source {}..{}@{} link {} lat {} compute {} decode {}x{} staging {}",
            self.seed,
            self.contention,
            self.ranks,
            self.ranks_per_host,
            self.network_mb_per_s,
            self.source_one_mb_per_s,
            self.source_many_mb_per_s,
            self.source_readers,
            self.source_link_mb_per_s,
            self.source_latency_ms,
            self.compute_mb_per_s,
            self.staging_threads,
            self.preprocess_mb_per_s,
            self.staging_samples,
        )?;
        for tier in &self.tiers {
            let Tier {
                capacity_samples,
                scope,
                threads,
                read_mb_per_s,
                write_mb_per_s,
            } = tier;
            write!(
                out,
                " [{capacity_samples} of {} by {scope}, {threads}x, {read_mb_per_s}/{write_mb_per_s}]",
                self.samples
            )?;
        }
        Ok(())
    }
}
