//! Bringing a job up: opening its tiers, planning, and setting the engine where the trainer stands.

use crate::sync::atomic::Ordering;
use crate::sync::whole;
use std::cell::OnceCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foresee_config::{Tier, TierKind};
use foresee_core::engine::Engine;
use foresee_core::ids::{SampleId, TierId};
use foresee_core::policy::specimen::{Caching, Traits};
use foresee_core::policy::{Keeping, Part};
use foresee_core::threads::crew::{Choice, Crew};
use foresee_core::threads::window::Window;
use foresee_core::units::Bytes;

use super::allotment;
use super::balancing::Rules;
use super::consumer::Consumer;
use super::course::Course;
use super::dealings::Dealings;
use super::error::JobError;
use super::looks::Looks;
use super::meeting::{Brought, Peers};
use super::outbox::Outbox;
use super::reader::Reader;
use super::shared::{Parts, Shared};
use super::shelf::Shelf;
use super::state::{Ended, State};
use super::stores::{Grant, Stores, aside};
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

/// What a job opens before it is known whether it has peers.
pub(super) struct Opened {
    pool: Arc<Pool>,
    stores: Arc<Stores>,
    grant: Grant,
}

impl Opened {
    /// Nobody needs it any more.
    pub(super) fn close(self) {
        self.stores.close();
    }
}

impl Job {
    /// The running job; started where the consumer stands if it does not run yet. None while it still meets its peers at the
    /// deadline: to wait for them is no reason to be deaf.
    pub(super) fn running(
        &self,
        consumer: &Consumer,
        deadline: Instant,
    ) -> Result<Option<Arc<Shared>>, JobError> {
        let mut running = self.lock_running();
        if let Some(shared) = &*running {
            return Ok(Some(Arc::clone(shared)));
        }
        // Somebody may have closed it a moment ago.
        if self.closed.load(Ordering::Relaxed) {
            return Err(JobError::Closed);
        }
        if let Some(peers) = self.peers() {
            self.open_for(&peers, consumer)?;
            drop(running);
            if !peers.wait(deadline)? {
                return Ok(None);
            }
            running = self.lock_running();
            if self.closed.load(Ordering::Relaxed) {
                return Err(JobError::Closed);
            }
        }
        let opened = whole(self.opened.lock()).take();
        let opened = match opened {
            Some(opened) => opened,
            None => self.open()?,
        };
        let shared = self.start(consumer, opened)?;
        *running = Some(Arc::clone(&shared));
        Ok(Some(shared))
    }

    /// Opens what it needs to know before it can meet its peers, and seeks them; once.
    fn open_for(&self, peers: &Arc<Peers>, consumer: &Consumer) -> Result<(), JobError> {
        let mut place = whole(self.opened.lock());
        if place.is_some() {
            return Ok(());
        }
        let opened = self.open()?;
        let spec = self.spec();
        let course = (consumer.layout.clone(), consumer.mark);
        let capacities = allotment::even_capacities(&spec, &opened.stores);
        let brief = spec.brief(self.orders(), course, &capacities, &[])?;
        let inherited = allotment::inherited(&spec, &opened.stores);
        let stores = Arc::clone(&opened.stores);
        peers.seek(Brought {
            spec,
            brief,
            inherited,
            stores,
        })?;
        *place = Some(opened);
        Ok(())
    }

    /// Seeks its peers, and does not start.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn seek_peers(&self) -> Result<(), JobError> {
        let peers = self.peers().expect("it was given a way to them");
        self.open_for(&peers, &self.consumer())
    }

    /// What it opened, once it has met its peers.
    #[cfg(all(test, not(feature = "shuttle")))]
    pub(super) fn meets_peers(&self) -> Option<Arc<Stores>> {
        let peers = self.peers()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(peers.wait(deadline).is_ok_and(|is_decided| is_decided));
        assert!(peers.agreed().is_some(), "all came");
        let opened = whole(self.opened.lock()).take()?;
        Some(opened.stores)
    }

    fn open(&self) -> Result<Opened, JobError> {
        let pool = Pool::of_process();
        let (stores, grant) = self.open_stores(&pool)?;
        let spec = self.spec();
        if !spec.config.source.immutable {
            stores.drop_incomparable(&*spec.source);
        }
        Ok(Opened {
            pool,
            stores: Arc::new(stores),
            grant,
        })
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
        shared.close(false);
        if let Some(trace) = &shared.trace {
            // What follows is written over it: the job begins anew.
            trace.end(&serde_json::Value::Null);
        }
        shared.give_back(CLOSE_MAX);
        *whole(self.spec.write()) = Arc::new(spec);
        Ok(true)
    }

    fn start(&self, consumer: &Consumer, opened: Opened) -> Result<Arc<Shared>, JobError> {
        let spec = self.spec();
        let Opened {
            pool,
            stores,
            grant,
        } = opened;
        if self.peers().is_none_or(|peers| peers.agreed().is_none()) {
            allotment::allot_evenly(&spec, &stores);
        }
        let held = stores.held();
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
        let transport = self.peers().and_then(|peers| peers.transport());
        let staging_bytes = spec.config.staging.capacity_bytes;
        let outbox = Outbox::new(staging_bytes, spec.catalog.largest().0, Arc::clone(&pool));
        if transport.is_some() {
            let deadline = spec.config.peers.deadline;
            let ranks = (spec.rank(), spec.world);
            let dealings = Dealings::new(ranks, deadline, Arc::clone(&outbox));
            state.dealings = Some(if state.course.desk.parks() {
                dealings
            } else {
                dealings.guessing()
            });
        }
        let reader = Reader::new(Arc::clone(&spec), looks(&spec, &stores));
        let rules = Rules::of(&spec, stores.arena.crews())?;
        Shared::start(Parts {
            spec,
            stores,
            reader,
            trace: self.trace()?,
            transport,
            outbox,
            on_demand,
            mean_bytes,
            largest_bytes,
            state,
            pool,
            grant,
            rules,
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
        let agreed = self.peers().and_then(|peers| peers.agreed());
        // What all plan with is what tiers held when the job started, so that homes stay; its own tiers a rank knows better.
        let brief = match &agreed {
            Some(agreed) => agreed.complete(brief),
            None => brief,
        };
        let shares = agreed.as_ref().map(|agreed| &agreed.shares[..]);
        let (part, fills_first) = spec.part(&brief, shares)?;
        let mut part = Part {
            held: held.to_vec(),
            ..part
        };
        spec.keep_once(&mut part);
        if let Keeping::Homes { spare, .. } = &part.keeping {
            stores.divide(spare);
        }
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
        let desk = desk.filled_first(fills_first);
        if let Some(homes) = homes {
            return Ok(desk.among(spec.rank(), homes, bringers, &brief.held));
        }
        let policy = spec.policy()?;
        let holders = agreed.as_ref().and_then(|agreed| {
            let found = agreed.holders.get_or_init(|| policy.holders(&brief));
            found.as_ref()
        });
        Ok(match holders {
            Some(holders) => desk.among_holders(spec.rank(), holders),
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
        let does_keep = Traits::of(spec.policy()?).keeps != Caching::Nothing;
        let (wanted, capacity) = memory
            .filter(|_| does_keep)
            .map_or((0, 0), |tier| (total, spec.part_bytes(tier)));
        let grant = Grant::new(pool, spec.budget(), wanted, capacity);
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
                _ if spec.part_bytes(tier) == 0 || !does_keep => Box::new(Nowhere),
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
        capacity: Bytes(spec.part_bytes(tier)),
        // Of what ranks share one may have all.
        capacity_max: Bytes(tier.capacity_bytes),
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
