//! Jobs in which ranks of a host are late by turns: several ranks a host, tiers for 30 % of a dataset with the sizes of
//! ImageNet-1k, and a source that does not keep up.

use std::error::Error;
use std::path::Path;

use foresee_core::policy::by_name;
use foresee_sim::job::Job;
use foresee_sim::outcome::Outcome;
use foresee_sim::scenario::Template;
use foresee_sim::simulate;

/// A source, by how much more it gives to more readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// 16 readers and more share 450 MB/s.
    Bounded,
    /// 8 readers get 500 MB/s, and each further one as much again.
    Growing,
    /// Every read takes 20 ms, however many there are.
    Distant,
}

/// So many hosts of eight ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) hosts: u32,
    pub(crate) source: Source,
}

/// What a policy is tried with: its threads shared or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) name: &'static str,
    pub(crate) policy: &'static str,
    pub(crate) balance: &'static str,
}

const fn a_try(name: &'static str, policy: &'static str, balance: &'static str) -> Try {
    Try {
        name,
        policy,
        balance,
    }
}

pub(crate) const STAGING_ALONE: Try = a_try("staging alone", "staging-buffer", "off");
pub(crate) const NEITHER: Try = a_try("nopfs: neither", "nopfs", "off");
pub(crate) const THREADS_ONLY: Try = a_try("threads only", "nopfs", "lobster");
pub(crate) const EVICTION_ONLY: Try = a_try("eviction only", "lobster", "off");
pub(crate) const BOTH: Try = a_try("lobster: both", "lobster", "policy");
pub(crate) const FORESEE_FIXED: Try = a_try("foresee, fixed threads", "foresee", "off");
pub(crate) const FORESEE: Try = a_try("foresee", "foresee", "policy");

impl Case {
    /// The job, with this many samples of the dataset.
    pub(crate) fn job(self, samples: u32, balance: &str) -> Result<Job, Box<dyn Error>> {
        let ranks = self.hosts * 8;
        let batch = ranks * 32;
        let memory_mb = (0.3 * f64::from(samples) * 0.118 / f64::from(self.hosts)).round();
        let (points, beyond, latency_ms, compute) = match self.source {
            Source::Bounded => ("{ 1 = 60, 16 = 450 }", "clamp", 0, 100),
            Source::Growing => ("{ 1 = 90, 8 = 500 }", "regression", 0, 200),
            Source::Distant => ("{ 1 = 2000, 8 = 16000 }", "regression", 20, 30),
        };
        let text = format!(
            "name = \"balanced hosts\"\n[job]\nranks = {ranks}\nranks_per_host = 8\nglobal_batch = {batch}\nepochs = 5\n\
             drop_last = true\nseed = 1\nbalance = \"{balance}\"\ncompute_mb_per_s = {compute}\npreprocess_mb_per_s = 200\n\
             [dataset]\nsamples = {samples}\nsize_mb = {{ mean = 0.1077, stddev = 0.1 }}\n\
             [system]\nnetwork_mb_per_s = 2000\nsource_link_mb_per_s = 2000\nsource_read_mb_per_s = {points}\n\
             source_latency_ms = {latency_ms}\ncontention = \"reads\"\nextrapolate = \"{beyond}\"\n\
             [[system.tier]]\nname = \"staging\"\ncapacity_mb = 16\nthreads = 2\nread_mb_per_s = {{ 2 = 21164 }}\n\
             [[system.tier]]\nname = \"memory\"\ncapacity_mb = {memory_mb}\nscope = \"host\"\nthreads = 2\n\
             read_mb_per_s = {{ 2 = 21164 }}\n"
        );
        let scenario = Template::parse(Path::new("balanced-hosts.toml"), &text)?.with(&[])?;
        Ok(Job::new(&scenario)?)
    }

    /// What comes of it.
    pub(crate) fn run(self, samples: u32, of: Try) -> Result<Outcome, Box<dyn Error>> {
        let job = self.job(samples, of.balance)?;
        let policy = by_name(of.policy).ok_or("there is no such policy")?;
        Ok(simulate(&job, policy, |_| ()))
    }
}
