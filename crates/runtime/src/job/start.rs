//! Bringing a job up: opening its tiers, planning, and setting the engine where the trainer stands.

use crate::sync::atomic::Ordering;
use crate::sync::whole;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::{Tier, TierKind};
use foresee_core::engine::Engine;
use foresee_core::ids::{SampleId, TierId};
use foresee_core::policy::Part;
use foresee_core::policy::specimen::Traits;
use foresee_core::units::Bytes;

use super::agreement::Peers;
use super::consumer::Consumer;
use super::course::Course;
use super::error::JobError;
use super::looks::Looks;
use super::peers::Dealings;
use super::reader::Reader;
use super::shared::{Parts, Shared};
use super::shelf::Shelf;
use super::state::{Ended, State};
use super::stores::{Grant, Stores, aside};
use super::threads::{Choice, Crew};
use super::window::Window;
use super::{Began, CLOSE_MAX, Job, JobSpec};
use crate::arena::{Arena, Keeps};
use crate::dataset::Dataset;
use crate::desk::Desk;
use crate::peers::Bringers;
use crate::pool::Pool;
use crate::tier::{self, DiskSpec, DiskView, MemoryTier, Nowhere};
use crate::trace::{self, Trace};

/// Staged ahead to begin with, at least: little, as memory that nobody has touched yet may be slower than the storage.
const WINDOW_BYTES: u64 = 8 << 20;

/// A disk that does not finish to write in this time is not waited for.
const WRITTEN_AFTER: Duration = Duration::from_secs(1);

/// How often a dataset that changes while a job starts is measured again, before its samples are errors.
const MEASURED_MAX: u32 = 3;

impl Job {
    /// The running job; started where the consumer stands if it does not run yet.
    pub(super) fn running(&self, consumer: &Consumer) -> Result<Arc<Shared>, JobError> {
        let mut running = self.lock_running();
        if let Some(shared) = &*running {
            return Ok(Arc::clone(shared));
        }
        // Somebody may have closed it a moment ago.
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        let shared = self.start(consumer)?;
        *running = Some(Arc::clone(&shared));
        Ok(shared)
    }

    /// Goes on where the consumer stands now; what tiers hold stays.
    pub(super) fn restart(&self, consumer: &Consumer) -> Result<(), JobError> {
        self.note_place(consumer);
        let Some(shared) = self.lock_running().clone() else {
            return Ok(());
        };
        self.leave_course();
        if consumer.mark.epoch.0 >= self.epochs() {
            return Ok(());
        }
        shared.change(|state| ((), state.stop()));
        // What is being written to a disk is about to be held: without it, it would be read from the source again.
        shared.sleep(Instant::now() + WRITTEN_AFTER, State::is_written);
        let held = shared.stores.held();
        let desk = self
            .desk(consumer, &shared.stores, &held)
            .inspect_err(|cause| {
                let said = cause.to_string();
                shared.change(|state| ((), state.end(Ended::Defect(said))));
            })?;
        let places = self.shelf(consumer);
        shared.change(|state| {
            let mut desk = desk;
            desk.remember(&state.course.desk);
            let course = state.course.followed_by(desk, places);
            ((), state.go_on_with(course, &shared.stores))
        });
        shared.divide_budgets();
        Ok(())
    }

    /// Whether the catalog is void, which counts before the first batch: what was planned with it is not begun then.
    pub(super) fn is_void(&self, shared: &Shared) -> bool {
        self.first_batch_ns.load(Ordering::Relaxed) == 0
            && shared.reader.is_void()
            && self.measured.load(Ordering::Relaxed) < MEASURED_MAX
    }

    /// A file has another size than when it was listed: all are measured again, and the job begins anew with what they are
    /// now. False where they cannot be; then what is wrong with the sample is said.
    pub(super) fn measure_again(
        &self,
        consumer: &mut Consumer,
        shared: &Shared,
    ) -> Result<bool, JobError> {
        self.measured.fetch_add(1, Ordering::Relaxed);
        let Some(Ok(measured)) = shared.spec.source.dataset().map(Dataset::measure_again) else {
            self.measured.store(MEASURED_MAX, Ordering::Relaxed);
            return Ok(false);
        };
        tracing::warn!(
            "files have other sizes than when they were listed: all were measured again"
        );
        let spec = JobSpec {
            catalog: measured.catalog,
            dataset: measured.digest,
            ..(*shared.spec).clone()
        };
        spec.check()?;
        consumer.begin_step_anew();
        self.lock_running().take();
        shared.close();
        if let Some(trace) = &shared.trace {
            // What follows is written over it: the job begins anew.
            trace.end(&serde_json::Value::Null);
        }
        shared.give_back(CLOSE_MAX);
        *whole(self.spec.write()) = Arc::new(spec);
        Ok(true)
    }

    fn start(&self, consumer: &Consumer) -> Result<Arc<Shared>, JobError> {
        let spec = self.spec();
        let pool = Pool::of_process();
        let (stores, grant) = self.open_stores(&pool)?;
        let held = stores.held();
        self.agree(consumer, &stores, &held)?;
        let desk = self.desk(consumer, &stores, &held)?;
        if let Ok(mut began) = self.began.lock() {
            let held = held.iter().map(|(sample, _)| *sample).collect();
            *began = Began {
                mark: consumer.mark,
                held,
                minimum_bytes: OnceCell::new(),
            };
        }
        let on_demand = Traits::of(spec.policy()?).on_demand;
        let crew = crew(&spec, &desk, &stores);
        let (mean_bytes, largest_bytes) = self.sizes();
        let window = Window::new(
            WINDOW_BYTES.max(largest_bytes),
            spec.config.staging.capacity_bytes,
        );
        let course = Course::new(desk, self.shelf(consumer));
        let mut state = State::new(course, crew, stores.tiers.len() + 1, window);
        state.evict(&stores);
        let transport = self.peers.as_ref().and_then(Peers::transport);
        if transport.is_some() {
            state.dealings = Some(Dealings::new(spec.rank(), spec.world));
        }
        let reader = Reader::new(Arc::clone(&spec), looks(&spec, &stores));
        Shared::start(Parts {
            spec,
            stores,
            reader,
            trace: self.trace()?,
            transport,
            on_demand,
            mean_bytes,
            largest_bytes,
            state,
            pool,
            grant,
        })
        .map_err(|cause| JobError::Threads {
            cause: Arc::new(cause),
        })
    }

    fn trace(&self) -> Result<Option<Trace>, JobError> {
        let spec = self.spec();
        let Some(path) = &spec.config.trace else {
            return Ok(None);
        };
        let path = trace::path_of(path, spec.rank, spec.world);
        let unwritable = |cause| JobError::Trace {
            path: path.clone(),
            cause: Arc::new(cause),
        };
        Trace::create(&path).map(Some).map_err(unwritable)
    }

    /// Where the samples of decoded batches go.
    fn shelf(&self, consumer: &Consumer) -> Option<Shelf> {
        let spec = self.spec();
        let len = spec.decoded_bytes()? as usize;
        Some(Shelf::new(
            len,
            consumer.layout.clone(),
            spec.rank(),
            consumer.mark,
        ))
    }

    /// What a sample takes of the staging buffer, on average and at most.
    fn sizes(&self) -> (u64, u64) {
        let spec = self.spec();
        let largest = spec.catalog.largest().0;
        let mean = spec.catalog.total().0 / u64::from(spec.catalog.len().max(1));
        spec.decoded_bytes()
            .map_or((mean, largest), |bytes| (bytes, bytes))
    }

    /// Tells the other ranks what this one can hold and holds, and learns it of them, the first time.
    fn agree(
        &self,
        consumer: &Consumer,
        stores: &Stores,
        held: &[(SampleId, TierId)],
    ) -> Result<(), JobError> {
        let Some(peers) = &self.peers else {
            return Ok(());
        };
        let spec = self.spec();
        let course = (consumer.layout.clone(), consumer.mark);
        let brief = spec.brief(self.orders(), course, &stores.capacities(), &[])?;
        peers.agree(&spec, brief, held)
    }

    /// An engine where the consumer stands, with what the tiers hold.
    pub(super) fn desk(
        &self,
        consumer: &Consumer,
        stores: &Stores,
        held: &[(SampleId, TierId)],
    ) -> Result<Desk, JobError> {
        let spec = self.spec();
        let kept = stores.capacities();
        let course = (consumer.layout.clone(), consumer.mark);
        let brief = spec.brief(self.orders(), course, &kept, held)?;
        let agreed = self.peers.as_ref().and_then(Peers::agreed);
        // What all plan with is what tiers held when the job started, so that homes stay; its own tiers a rank knows better.
        let brief = match &agreed {
            Some(agreed) => agreed.complete(brief),
            None => brief,
        };
        let shares = agreed.as_ref().map(|agreed| &agreed.shares[..]);
        let part = Part {
            held: held.to_vec(),
            ..spec.part(&brief, shares)?
        };
        let model = spec.model(&brief);
        let homes = part.homes().filter(|_| brief.peers).cloned();
        let bringers = Bringers::new(&part.orders, consumer.layout.clone(), consumer.mark);
        let engine = Engine::new(&brief, part, Arc::clone(&model));
        let desk = Desk::new(
            engine,
            model,
            kept.len() + 1,
            spec.catalog.len(),
            held,
            spec.record,
        );
        Ok(match homes {
            Some(homes) => desk.among(spec.rank(), homes, bringers, &brief.held),
            None => desk,
        })
    }

    pub(super) fn open_stores(&self, pool: &Arc<Pool>) -> Result<(Stores, Grant), JobError> {
        let spec = self.spec();
        let total = spec.catalog.total().0;
        let memory = spec
            .config
            .tiers
            .iter()
            .find(|tier| tier.kind == TierKind::Memory);
        let does_keep = Traits::of(spec.policy()?).keeps;
        let (wanted, capacity) = memory
            .filter(|_| does_keep)
            .map_or((0, 0), |tier| (total, tier.capacity_bytes));
        let grant = Grant::new(pool, &spec.config, wanted, capacity);
        let granted = grant.bytes;
        let (samples, largest) = (u64::from(spec.catalog.len()), spec.catalog.largest().0);
        let keeps = Keeps {
            bytes: granted,
            samples,
            largest,
        };
        let arena = Arena::new(spec.config.staging.capacity_bytes, keeps).map_err(system(
            "cannot get memory for the staging buffer and the memory tier",
        ))?;
        let mut tiers = Vec::new();
        for tier in &spec.config.tiers {
            let opened: Box<dyn tier::Tier> = match &tier.kind {
                _ if tier.capacity_bytes == 0 || !does_keep => Box::new(Nowhere),
                TierKind::Memory => Box::new(MemoryTier::new(Arc::clone(&arena), granted)),
                TierKind::Disk { .. } => Box::new(aside(|| open_disk(pool, &spec, tier))?),
            };
            tiers.push(opened);
        }
        Ok((Stores { arena, tiers }, grant))
    }
}

/// The threads that a job begins with. A tier that can hold nothing has none, as in the simulator.
fn crew(spec: &JobSpec, desk: &Desk, stores: &Stores) -> Crew {
    let (staging, is_ours) = spec.staging_threads();
    let tiers = spec.config.tiers.iter().zip(stores.capacities());
    let of_tiers = tiers.map(|(tier, bytes)| if bytes > 0 { tier.threads } else { 0 });
    let choice = if is_ours {
        Choice::Auto {
            helped: spec.images.is_none(),
        }
    } else {
        Choice::Fixed
    };
    let threads = std::iter::once(staging).chain(of_tiers);
    Crew::new(desk.threads(), threads, spec.cores(), choice)
}

/// Opens the cache of this dataset for the rank's slot of its host.
fn open_disk(pool: &Pool, spec: &JobSpec, tier: &Tier) -> Result<DiskView, JobError> {
    let TierKind::Disk {
        path,
        free_space_floor_bytes,
        trust_folder,
    } = &tier.kind
    else {
        unreachable!("only tiers on disk are opened")
    };
    let disk_spec = DiskSpec {
        folder: path.clone(),
        name: String::new(),
        orphans: Vec::new(),
        dataset: spec.dataset,
        sizes: Arc::clone(&spec.catalog),
        capacity: Bytes(tier.capacity_bytes),
        floor: Bytes(*free_space_floor_bytes),
        trusted: *trust_folder,
    };
    let opened = pool.disks().open_slot(&disk_spec, spec.host_slot());
    Ok(opened.map_err(Arc::new)?)
}

fn system(what: &'static str) -> impl Fn(std::io::Error) -> JobError {
    move |cause| JobError::System {
        what,
        cause: Arc::new(cause),
    }
}

/// What has to be looked at in the source before a tier's copy is served.
fn looks(spec: &JobSpec, stores: &Stores) -> Looks {
    let lasts = stores.tiers.iter().any(|tier| tier.outlasts_jobs());
    if lasts && !spec.config.source.immutable {
        Looks::of(spec.catalog.len())
    } else {
        Looks::at_nothing()
    }
}
