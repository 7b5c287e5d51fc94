//! One rank lists, the others get its catalog: rank 0 offers what it listed, or had saved, and the others ask it before they
//! look at anything. Rank 0 waits for nobody; whoever gets nothing within its bound lists for itself, in one line of the log.
//!
//! A dataset is asked for by what it is listed from and where that is, links followed, so what is mounted elsewhere is
//! another one. And its first folder must be what it was for rank 0: copies on the disks of hosts have the same path. Times of
//! files may come to something else on another host: reads then look twice, and are no less right.
//!
//! Who is given what it was given before looks at all folders: files may have come since, and rank 0, which is to list them
//! anew, too, is perhaps only slower.

use std::sync::Arc;

use foresee_config::OneLine;
use foresee_core::ids::Rank;

use super::saved::{Key, Saved, decode, encode};
use super::stamps::Stamps;
use super::{Dataset, DatasetError, Listing};
use crate::transport::tcp::{Mesh, OfferName};

/// What to say where rank 0's catalog is for something else.
const OF_ELSEWHERE: &str = "its folder is not the one that is here";

/// The same where that is what it was, and is not any more.
const OF_BEFORE: &str = "its folders have changed since it was listed";

/// What was found, as it is saved and sent, too, if it was encoded.
struct Found {
    dataset: Dataset,
    bytes: Option<Vec<u8>>,
}

/// What rank 0 listed, else what was saved if it is valid, else what `list` finds, which is saved if its folders have been at
/// rest. `called` is what people call it.
pub(super) fn saved_or_listed(
    listing: &Listing<'_>,
    key: &Key,
    called: &str,
    list: impl FnOnce() -> Result<(Dataset, Option<Stamps>), DatasetError>,
) -> Result<Dataset, DatasetError> {
    let place = key.value();
    let name = OfferName(place.to_le_bytes());
    let saved = listing.catalogs().map(|catalogs| Saved::new(catalogs, key));
    let dataset = match listing.mesh {
        None => find(listing, saved.as_ref(), place, list)?.dataset,
        Some(mesh) if mesh.rank() == Rank(0) => {
            let announced = mesh.announce(name);
            let found = find(listing, saved.as_ref(), place, list)?;
            if let Some(bytes) = found.bytes {
                announced.offer(bytes);
            }
            found.dataset
        }
        Some(mesh) => match get(mesh, name, listing, place) {
            Ok(dataset) => dataset,
            Err(why) => {
                let rank = mesh.rank();
                tracing::warn!(
                    "rank {rank}: {}: no catalog from rank 0 ({why}); it is listed here",
                    OneLine(called)
                );
                find(&listing.alone(), saved.as_ref(), place, list)?.dataset
            }
        },
    };
    Ok(Dataset {
        saved,
        place,
        ..dataset
    })
}

/// What rank 0 has listed, or why it cannot be used.
fn get(
    mesh: &Arc<Mesh>,
    name: OfferName,
    listing: &Listing<'_>,
    key: u128,
) -> Result<Dataset, String> {
    let asked = mesh.ask_first(name, listing.patience);
    let offered = asked.map_err(|missed| missed.to_string())?;
    let decoded = decode(&offered.bytes, key);
    let (dataset, stamps) = decoded.ok_or("it is damaged or of another version")?;
    if !stamps.begin_here() {
        Err(OF_ELSEWHERE.to_owned())
    } else if offered.is_again && !stamps.are_here(listing.threads) {
        Err(OF_BEFORE.to_owned())
    } else {
        Ok(dataset)
    }
}

fn find(
    listing: &Listing<'_>,
    saved: Option<&Saved>,
    key: u128,
    list: impl FnOnce() -> Result<(Dataset, Option<Stamps>), DatasetError>,
) -> Result<Found, DatasetError> {
    if let Some((dataset, bytes)) = saved.and_then(|saved| saved.load(listing.threads)) {
        return Ok(Found {
            dataset,
            bytes: Some(bytes),
        });
    }
    let (dataset, stamps) = list()?;
    let Some(stamps) = stamps else {
        return Ok(Found {
            dataset,
            bytes: None,
        });
    };
    let saved = saved.filter(|_| {
        if !stamps.are_trusted() {
            tracing::debug!("catalog is not saved: a folder was changed just now");
        }
        stamps.are_trusted()
    });
    let is_wanted = saved.is_some() || listing.mesh.is_some();
    let bytes = is_wanted.then(|| encode(&dataset, &stamps, key));
    if let (Some(saved), Some(bytes)) = (saved, &bytes) {
        saved.store(bytes);
    }
    Ok(Found { dataset, bytes })
}

#[cfg(test)]
#[cfg(not(feature = "shuttle"))]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::{Duration, Instant, SystemTime};

    use tempfile::TempDir;

    use super::*;
    use crate::transport::tcp::Meeting;

    /// Longer than any of this takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn world(ranks: u32) -> Vec<Arc<Mesh>> {
        let mut meshes: Vec<Arc<Mesh>> = Vec::new();
        for rank in 0..ranks {
            let port = meshes.first().map_or(0, |first| first.port());
            let meeting = Meeting {
                rank: Rank(rank),
                world: ranks,
                first: ("127.0.0.1".to_owned(), port),
                bind: "127.0.0.1".parse().unwrap(),
                secret: Some(b"secret".to_vec()),
                launch: "launch".to_owned(),
                encrypt: false,
                sample_bytes_max: 0,
            };
            meshes.push(Mesh::start(meeting).unwrap());
        }
        meshes
    }

    fn folder() -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for class in ["cat", "dog"] {
            fs::create_dir(root.path().join(class)).unwrap();
            for file in 0..20 {
                let path = root.path().join(format!("{class}/{file}.jpg"));
                fs::write(path, class).unwrap();
            }
        }
        root
    }

    /// What a rank finds, and how many files it looked at itself.
    fn opened(
        root: &Path,
        mesh: &Arc<Mesh>,
        patience: Duration,
    ) -> (Result<Dataset, DatasetError>, u64) {
        let looked_at = AtomicU64::new(0);
        let count = |samples| looked_at.store(samples, Ordering::Relaxed);
        let listing = Listing {
            cache: None,
            progress: Some(&count),
            mesh: Some(mesh),
            patience,
            ..Listing::default()
        };
        let dataset = Dataset::image_folder(root, &listing);
        (dataset, looked_at.load(Ordering::Relaxed))
    }

    #[test]
    fn others_get_what_rank_0_listed_and_look_at_nothing() {
        let root = folder();
        let meshes = world(4);
        let found: Vec<_> = thread::scope(|scope| {
            let open = |mesh: &Arc<Mesh>| {
                let mesh = Arc::clone(mesh);
                let path = root.path();
                let waits = Duration::from_millis(if mesh.rank() == Rank(0) { 300 } else { 0 });
                scope.spawn(move || {
                    thread::sleep(waits);
                    opened(path, &mesh, PATIENCE)
                })
            };
            let threads: Vec<_> = meshes.iter().map(open).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
            threads.into_iter().map(join).collect()
        });
        let looks: Vec<u64> = found.iter().map(|(_, looks)| *looks).collect();
        assert_eq!(looks, [40, 0, 0, 0]);
        let datasets: Vec<&Dataset> = found.iter().flat_map(|(found, _)| found).collect();
        assert_eq!(datasets.len(), 4);
        for dataset in &datasets {
            assert_eq!(*dataset, datasets[0]);
            assert_eq!(dataset.digest(), datasets[0].digest());
            assert_eq!(dataset.place(), datasets[0].place());
        }
        let (again, looks) = opened(root.path(), &meshes[2], PATIENCE);
        assert!(again.is_ok());
        assert_eq!(looks, 0, "made once more");
    }

    #[test]
    fn who_gets_nothing_in_time_lists() {
        let root = folder();
        let meshes = world(2);
        let began = Instant::now();
        let (found, looks) = opened(root.path(), &meshes[1], Duration::from_millis(300));
        assert_eq!(found.unwrap().len(), 40);
        assert_eq!(looks, 40);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn rank_0_waits_for_nobody() {
        let root = folder();
        let meshes = world(2);
        let began = Instant::now();
        let (found, looks) = opened(root.path(), &meshes[0], PATIENCE);
        assert!(found.is_ok());
        assert_eq!(looks, 40);
        assert!(began.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn what_rank_0_cannot_list_others_list_at_once() {
        let root = folder();
        let meshes = world(2);
        let key = Key::new("any");
        let wrong = || Err(DatasetError::NoFiles);
        let listing = |mesh| Listing {
            cache: None,
            mesh: Some(mesh),
            patience: PATIENCE,
            ..Listing::default()
        };
        let first = saved_or_listed(&listing(&meshes[0]), &key, "any", wrong);
        assert!(matches!(first, Err(DatasetError::NoFiles)));
        let began = Instant::now();
        let list = || {
            let found = opened(root.path(), &meshes[0], PATIENCE).0?;
            Ok((found, None))
        };
        let second = saved_or_listed(&listing(&meshes[1]), &key, "any", list);
        assert_eq!(second.unwrap().len(), 40);
        assert!(began.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn a_folder_that_is_another_one_here_is_listed_here() {
        let root = folder();
        let meshes = world(2);
        let (first, _) = opened(root.path(), &meshes[0], PATIENCE);
        assert!(first.is_ok());
        let then = SystemTime::now() - Duration::from_secs(77);
        let file = fs::File::open(root.path()).unwrap();
        file.set_modified(then).unwrap();
        let (second, looks) = opened(root.path(), &meshes[1], PATIENCE);
        assert!(second.is_ok());
        assert_eq!(looks, 40);
    }

    #[test]
    fn a_file_that_came_since_is_found_by_who_is_there_before_rank_0() {
        let root = folder();
        let meshes = world(2);
        let (first, _) = opened(root.path(), &meshes[0], PATIENCE);
        assert_eq!(first.unwrap().len(), 40);
        let (second, looks) = opened(root.path(), &meshes[1], PATIENCE);
        assert_eq!(second.unwrap().len(), 40);
        assert_eq!(looks, 0);
        // As the clock of the storage goes, not in the same moment.
        thread::sleep(Duration::from_millis(50));
        fs::write(root.path().join("cat/new.jpg"), "cat").unwrap();
        let (second, looks) = opened(root.path(), &meshes[1], PATIENCE);
        let (first, _) = opened(root.path(), &meshes[0], PATIENCE);
        assert_eq!(looks, 41);
        assert_eq!(second.unwrap().digest(), first.unwrap().digest());
    }

    #[test]
    fn what_is_not_here_is_an_error_at_once() {
        let meshes = world(2);
        let began = Instant::now();
        let (found, _) = opened(Path::new("/nowhere/at/all"), &meshes[1], PATIENCE);
        assert!(matches!(found, Err(DatasetError::Missing(_))));
        assert!(began.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn few_files_are_looked_at_by_each_rank() {
        let root = folder();
        let meshes = world(2);
        let listing = Listing {
            cache: None,
            mesh: Some(&meshes[1]),
            patience: PATIENCE,
            ..Listing::default()
        };
        let began = Instant::now();
        let file = root.path().join("cat/0.jpg");
        assert_eq!(Dataset::files(vec![file], None, &listing).unwrap().len(), 1);
        assert!(began.elapsed() < PATIENCE / 2);
    }
}
