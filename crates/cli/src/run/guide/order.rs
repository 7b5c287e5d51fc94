//! From what was said of an order to what the engine needs: the catalog of all files, the order of each epoch, and the machine.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail};
use foresee_cache::copying;
use foresee_cache::key::{self, Identity, Key};
use foresee_cache::placing::Cache;
use foresee_cache::settings::{Root, Settings};
use foresee_core::catalog::Catalog;
use foresee_core::engine::Engine;
use foresee_core::held::Held;
use foresee_core::ids::{Rank, SampleId, TierId};
use foresee_core::model::{
    Beyond, Contention, Curve, Decoded, Hosts, Model, Scope, System, Tier, Trainer,
};
use foresee_core::policy::{Assignment, Brief, Capacities, by_name};
use foresee_core::stream::{Deal, Layout, LayoutSpec, Mark, Orders, Shuffle, Stream, Tail};
use foresee_core::units::{Bytes, Rate, Seconds};
use foresee_runtime::dataset::{Dataset, Listing};

use super::{Guidance, Said};

/// The window's part of the quota: enough to read ahead, and most is left to be kept.
const WINDOW_PART: u64 = 16;
/// A window is to hold some files at least, if they take no more than half of the quota.
const WINDOW_FILES: u64 = 32;
/// What is not measured, and does not matter where there is one tier and one source.
const MB_PER_S: f64 = 1000.0;
const KEPT: TierId = TierId(1);

/// One file of the order.
pub(super) struct File {
    pub(super) path: PathBuf,
    /// What it was when it was listed.
    pub(super) identity: Identity,
    pub(super) key: Key,
}

/// All that is driven.
pub(super) struct Course {
    pub(super) files: Vec<File>,
    pub(super) engine: Engine,
    /// The same accesses as the engine's, to be followed.
    pub(super) stream: Stream,
    pub(super) model: Arc<Model>,
}

pub(super) fn course(
    guidance: &Guidance,
    settings: &Settings,
    cache: &Cache,
) -> anyhow::Result<Course> {
    let root = &settings.roots[0];
    let (files, shuffle, epochs) = match &guidance.said {
        Said::Sampled { seed, epochs } => {
            let files = sampled(root)?;
            (files, Shuffle::Torch { seed: *seed }, *epochs)
        }
        Said::Listed { file, epochs } => listed(root, file, *epochs)?,
    };
    let count = u32::try_from(files.len()).context("too many files")?;
    let orders = Orders::new(shuffle, count, epochs)?;
    let held = held(&files, cache);
    let brief = brief(guidance, settings, &files, orders, &held)?;
    let rank = Rank(guidance.rank.unwrap_or(0));
    let policy = by_name("foresee").context("no policy")?;
    let part = policy
        .part(&brief, &[policy.share(&brief, rank)], rank)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let trainer = Trainer {
        compute: Rate(MB_PER_S),
        preprocess: Rate(MB_PER_S),
        decoded: Decoded::AsIs,
    };
    let model = Arc::new(Model::new(&brief.system, &trainer, 1));
    let stream = Stream::new(part.orders.clone(), brief.layout.clone(), rank, Mark::START);
    Ok(Course {
        files,
        engine: Engine::new(&brief, part, Arc::clone(&model)),
        stream,
        model,
    })
}

fn brief(
    guidance: &Guidance,
    settings: &Settings,
    files: &[File],
    orders: Orders,
    held: &[(SampleId, TierId)],
) -> anyhow::Result<Brief> {
    let world = guidance.rank.map_or(1, |_| guidance.ranks);
    let layout = Layout::new(LayoutSpec {
        positions: orders.len(),
        world,
        global_batch: world,
        deal: Deal::Strided,
        tail: if world > 1 { Tail::Pad } else { Tail::Exact },
        drop_last: false,
    })?;
    let quota: u64 = settings.tiers.iter().map(|tier| tier.quota_bytes).sum();
    let quota = quota / u64::from(guidance.sharers);
    let largest = files
        .iter()
        .map(|file| file.identity.size_bytes)
        .max()
        .unwrap_or(0);
    let few = largest.saturating_mul(WINDOW_FILES).min(quota / 2);
    let window = (quota / WINDOW_PART).max(few);
    if largest > window {
        bail!("the quota is too small to read ahead: it has to be twice the largest file");
    }
    let rank = Rank(guidance.rank.unwrap_or(0));
    Ok(Brief {
        catalog: Arc::new(Catalog::new(
            files.iter().map(|file| file.identity.size_bytes).collect(),
        )),
        orders,
        layout,
        system: Arc::new(system(window, quota - window)?),
        capacities: Capacities::Same,
        hosts: Hosts::new(world, 1),
        assignment: Assignment::Order,
        peers: false,
        start: Mark::START,
        held: Held::by_rank(rank, held),
    })
}

fn system(window: u64, kept: u64) -> anyhow::Result<System> {
    let flat = || Curve::new(vec![(1, MB_PER_S)], Beyond::Clamp);
    let tier = |name: &str, capacity| -> anyhow::Result<Tier> {
        Ok(Tier {
            name: name.into(),
            capacity: Bytes(capacity),
            scope: Scope::Rank,
            threads: 1,
            read: flat()?,
            write: flat()?,
        })
    };
    Ok(System {
        network: Rate(MB_PER_S),
        source_link: Rate(MB_PER_S),
        source: flat()?,
        source_latency: Seconds::ZERO,
        contention: Contention::Reads,
        tiers: vec![tier("window", window)?, tier("cache", kept)?],
        cores_per_host: None,
    })
}

/// What is in the cache from before.
fn held(files: &[File], cache: &Cache) -> Vec<(SampleId, TierId)> {
    let is_held = |file: &File| copying::find(cache.tiers(), file.key).is_some();
    let samples = files.iter().enumerate();
    samples
        .filter(|(_, file)| is_held(file))
        .map(|(index, _)| (SampleId(index as u32), KEPT))
        .collect()
}

fn file(root: &Root, path: PathBuf) -> anyhow::Result<File> {
    let found =
        rustix::fs::stat(&path).with_context(|| format!("cannot look at {}", path.display()))?;
    let identity = Identity::of(&found);
    Ok(File {
        path,
        identity,
        key: identity.key(key::seed_of(&root.real)),
    })
}

/// The files of class folders, as torchvision lists them.
fn sampled(root: &Root) -> anyhow::Result<Vec<File>> {
    let folder = Path::new(std::ffi::OsStr::from_bytes(&root.named));
    let dataset = Dataset::image_folder(folder, &Listing::default())?;
    (0..dataset.len())
        .map(|sample| file(root, dataset.path(SampleId(sample))))
        .collect()
}

/// The files of a list, by when they first come, and each epoch's order of them.
fn listed(
    root: &Root,
    list: &Path,
    epochs: Option<u32>,
) -> anyhow::Result<(Vec<File>, Shuffle, u32)> {
    let text =
        std::fs::read_to_string(list).with_context(|| format!("--order {}", list.display()))?;
    let folder = Path::new(std::ffi::OsStr::from_bytes(&root.named));
    let mut files = Vec::new();
    let mut known: HashMap<&str, SampleId> = HashMap::new();
    let mut lists = vec![Vec::new()];
    for line in text.lines() {
        if line.is_empty() {
            lists.push(Vec::new());
            continue;
        }
        let sample = if let Some(sample) = known.get(line) {
            *sample
        } else {
            let sample = SampleId(u32::try_from(files.len())?);
            files.push(file(root, folder.join(line))?);
            known.insert(line, sample);
            sample
        };
        if let Some(last) = lists.last_mut() {
            last.push(sample);
        }
    }
    lists.retain(|list| !list.is_empty());
    let count = u32::try_from(lists.len())?;
    if count == 0 {
        bail!("--order {} has no paths; write one a line", list.display());
    }
    if count > 1 && epochs.is_some_and(|epochs| epochs != count) {
        bail!(
            "--order {} has {count} epochs; give as many with --epochs, or none",
            list.display()
        );
    }
    Ok((
        files,
        Shuffle::Explicit(lists.into()),
        epochs.unwrap_or(count),
    ))
}
