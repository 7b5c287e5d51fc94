//! Tests of the disk tier: against a naive model, over restarts and crashes, in folders that are not ours.

mod full_disk;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;

use super::folder::{INDEX, LOCK, MARK};
use super::log::{HEADER_BYTES, RECORD_BYTES};
use super::*;
use crate::tier::conformance;

const NAME: &str = "abc-rank0";
const SIZES: [u64; 12] = [0, 1, 10, 10, 33, 64, 64, 65, 100, 100, 128, 190];

fn spec(folder: &Path, capacity: u64) -> DiskSpec {
    DiskSpec {
        folder: folder.join("cache"),
        name: NAME.to_owned(),
        orphans: Vec::new(),
        dataset: [7; 16],
        sizes: Arc::new(Catalog::new(SIZES.to_vec())),
        capacity: Bytes(capacity),
        capacity_max: Bytes(capacity),
        floor: Bytes(0),
        trusted: false,
    }
}

/// Small segments, so that samples cross them.
fn open(spec: &DiskSpec) -> DiskTier {
    DiskTier::open_in_segments(spec, 64).unwrap()
}

fn refusal(spec: &DiskSpec) -> String {
    DiskTier::open(spec).unwrap_err().to_string()
}

fn bytes(sample: u32, version: u8) -> Vec<u8> {
    (0..SIZES[sample as usize])
        .map(|at| (at as u8).wrapping_mul(31) ^ (sample as u8) << 3 ^ version)
        .collect()
}

fn keep(tier: &DiskTier, sample: u32) -> Kept {
    tier.keep(SampleId(sample), &bytes(sample, 0), None)
        .unwrap()
}

fn read(tier: &DiskTier, sample: u32) -> Option<Vec<u8>> {
    let mut into = vec![0; SIZES[sample as usize] as usize];
    (tier.read(SampleId(sample), &mut into).unwrap() == Found::Yes).then_some(into)
}

/// All that is held, read and compared.
fn held(tier: &DiskTier) -> Vec<u32> {
    let held: Vec<_> = tier.held().into_iter().map(|sample| sample.0).collect();
    for &sample in &held {
        assert_eq!(
            read(tier, sample),
            Some(bytes(sample, 0)),
            "sample {sample}"
        );
    }
    held
}

fn sub_folder(spec: &DiskSpec) -> PathBuf {
    spec.folder.join(&spec.name)
}

fn data_files(spec: &DiskSpec) -> Vec<PathBuf> {
    let paths = fs::read_dir(sub_folder(spec))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths
        .filter(|path| path.to_str().unwrap().contains("/data-"))
        .collect();
    paths.sort();
    paths
}

#[test]
fn passes_the_conformance_suite() {
    let folder = TempDir::new().unwrap();
    let mut number = 0;
    for segment in [SEGMENT_BYTES, 70_000, 5000, 1000] {
        conformance::check(&mut |capacity| {
            number += 1;
            let spec = DiskSpec {
                name: format!("{number}"),
                sizes: Arc::new(conformance::catalog()),
                ..spec(folder.path(), capacity.0)
            };
            Box::new(DiskTier::open_in_segments(&spec, segment).unwrap())
        });
    }
}

#[derive(Clone, Debug)]
enum Act {
    Keep(u32, u8),
    Read(u32),
    Evict(u32),
    Restart,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let sample = 0..SIZES.len() as u32;
    let act = prop_oneof![
        6 => (sample.clone(), 0u8..2).prop_map(|(sample, version)| Act::Keep(sample, version)),
        3 => sample.clone().prop_map(Act::Read),
        3 => sample.prop_map(Act::Evict),
        1 => Just(Act::Restart),
    ];
    prop::collection::vec(act, 0..80)
}

/// What a map would have done; none where it has no room.
fn keep_in_model(model: &mut BTreeMap<u32, u8>, capacity: u64, sample: u32, version: u8) -> Kept {
    let others = model
        .keys()
        .filter(|other| **other != sample)
        .map(|other| SIZES[*other as usize])
        .sum::<u64>();
    if others + SIZES[sample as usize] > capacity {
        return Kept::NoRoom;
    }
    model.insert(sample, version);
    Kept::Yes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn agrees_with_a_map_over_restarts_and_down_to_the_last_byte(
        acts in acts(), capacity in 1u64..800, segment in 1u64..300,
    ) {
        let folder = TempDir::new().unwrap();
        let spec = spec(folder.path(), capacity);
        let mut tier = Some(DiskTier::open_in_segments(&spec, segment).unwrap());
        let mut model = BTreeMap::new();
        for act in acts {
            let open = tier.as_ref().unwrap();
            match act {
                Act::Keep(sample, version) => prop_assert_eq!(
                    open.keep(SampleId(sample), &bytes(sample, version), None).unwrap(),
                    keep_in_model(&mut model, capacity, sample, version)
                ),
                Act::Read(sample) => {
                    prop_assert_eq!(read(open, sample), model.get(&sample).map(|&version| bytes(sample, version)));
                }
                Act::Evict(sample) => {
                    open.evict(SampleId(sample));
                    model.remove(&sample);
                }
                Act::Restart => {
                    drop(tier.take());
                    tier = Some(DiskTier::open_in_segments(&spec, segment).unwrap());
                }
            }
            let open = tier.as_ref().unwrap();
            prop_assert_eq!(open.held(), model.keys().map(|&sample| SampleId(sample)).collect::<Vec<_>>());
            prop_assert_eq!(open.stats().held.0, model.keys().map(|&sample| SIZES[sample as usize]).sum::<u64>());
            prop_assert_eq!(open.corrupt(), 0);
        }
        let on_disk: u64 = data_files(&spec).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        prop_assert!(on_disk <= capacity);
    }
}

#[test]
fn is_warm_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    for sample in [1, 4, 8, 11] {
        assert_eq!(keep(&tier, sample), Kept::Yes);
    }
    tier.evict(SampleId(4));
    drop(tier);
    assert_eq!(held(&open(&spec)), [1, 8, 11]);
}

#[test]
fn is_emptied_for_another_dataset_or_damaged_index() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let change_header = || {
        let file = fs::OpenOptions::new()
            .write(true)
            .open(sub_folder(&spec).join(INDEX))
            .unwrap();
        file.write_all_at(&[99], 8).unwrap();
    };
    let other = DiskSpec {
        dataset: [8; 16],
        ..spec.clone()
    };
    assert_eq!(keep(&open(&spec), 11), Kept::Yes);
    let tier = open(&other);
    assert!(held(&tier).is_empty());
    assert_eq!(data_files(&spec), [] as [PathBuf; 0]);
    drop(tier);
    assert_eq!(keep(&open(&spec), 11), Kept::Yes);
    change_header();
    assert!(held(&open(&spec)).is_empty());
}

#[test]
fn a_space_that_grows_finds_all_that_it_held() {
    for (small, large, segment) in [(300, 1000, 64), (300, 1000, 4000), (300, 350, 300)] {
        let folder = TempDir::new().unwrap();
        let with = |capacity| DiskTier::open_in_segments(&spec(folder.path(), capacity), segment);
        let tier = with(small).unwrap();
        for sample in [8, 9, 6] {
            assert_eq!(keep(&tier, sample), Kept::Yes);
        }
        drop(tier);
        let tier = with(large).unwrap();
        assert_eq!(tier.capacity(), Bytes(large));
        assert_eq!(held(&tier), [6, 8, 9]);
        let more = keep(&tier, 11);
        assert_eq!(more == Kept::Yes, large - 264 >= 190);
        drop(tier);
        let tier = with(small).unwrap();
        assert_eq!(tier.capacity(), Bytes(large), "it does not shrink");
        assert_eq!(held(&tier).len(), if more == Kept::Yes { 4 } else { 3 });
    }
}

#[test]
fn drops_what_the_catalog_says_has_another_size() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    for sample in [2, 3, 11] {
        keep(&tier, sample);
    }
    drop(tier);
    let mut sizes = SIZES[..5].to_vec();
    sizes[3] += 1;
    let tier = open(&DiskSpec {
        sizes: Arc::new(Catalog::new(sizes)),
        ..spec
    });
    assert_eq!((held(&tier), tier.stats().held), (vec![2], Bytes(10)));
}

#[test]
fn an_index_cut_at_any_byte_gives_what_was_held_by_then() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 350);
    let mut states = vec![(0, vec![])];
    let tier = open(&spec);
    let note = |states: &mut Vec<_>| {
        let len = fs::metadata(sub_folder(&spec).join(INDEX)).unwrap().len();
        states.push((
            len,
            tier.held()
                .into_iter()
                .map(|sample| sample.0)
                .collect::<Vec<_>>(),
        ));
    };
    for sample in [8, 2, 9, 3, 10] {
        assert_eq!(keep(&tier, sample), Kept::Yes);
        note(&mut states);
    }
    for sample in [8, 10] {
        tier.evict(SampleId(sample));
        tier.note_evictions().unwrap();
        note(&mut states);
    }
    // 190 bytes, and no free range has more than 130: it lies in several.
    assert_eq!(keep(&tier, 11), Kept::Yes);
    note(&mut states);
    drop(tier);
    assert!(states[8].0 - states[7].0 > RECORD_BYTES);
    cut_everywhere(&spec, &states);
}

/// Cuts the index at every byte and compares with the last state that was complete.
fn cut_everywhere(spec: &DiskSpec, states: &[(u64, Vec<u32>)]) {
    let index = sub_folder(spec).join(INDEX);
    let whole = fs::read(&index).unwrap();
    for len in (states[1].0 as usize..=whole.len()).rev() {
        fs::write(&index, &whole[..len]).unwrap();
        let tier = open(spec);
        let expected = &states
            .iter()
            .rev()
            .find(|(end, _)| *end <= len as u64)
            .unwrap()
            .1;
        let found: Vec<_> = tier.held().into_iter().map(|sample| sample.0).collect();
        assert_eq!(&found, expected, "{len} bytes");
        for sample in found {
            // What lay where sample 11 was put later is damaged, and must say so.
            let data = read(&tier, sample);
            assert!(data.is_none() || data == Some(bytes(sample, 0)));
        }
        assert!(tier.corrupt() <= 2);
    }
}

#[test]
fn a_flipped_byte_anywhere_is_a_miss_that_is_counted() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    for at in 0..SIZES[11] {
        assert_eq!(keep(&tier, 11), Kept::Yes);
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&data_files(&spec)[at as usize / 64])
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at % 64).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at % 64).unwrap();
        assert_eq!(read(&tier, 11), None);
        assert_eq!((tier.corrupt(), tier.held()), (at + 1, vec![]));
    }
}

#[test]
fn who_must_not_wait_gets_what_is_there_and_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    assert_eq!(keep(&tier, 11), Kept::Yes);
    let at_once = |sample: u32, len: usize| {
        let mut into = vec![0; len];
        tier.read_at_once(SampleId(sample), &mut into)
            .unwrap()
            .then_some(into)
    };
    let len = SIZES[11] as usize;
    assert_eq!(
        (at_once(11, len), at_once(11, len - 1), at_once(10, 128)),
        (Some(bytes(11, 0)), None, None)
    );
    // As while a thread changes the index.
    let busy = tier.index();
    assert_eq!(at_once(11, len), None);
    drop(busy);
    fs::OpenOptions::new()
        .write(true)
        .open(&data_files(&spec)[1])
        .unwrap()
        .write_all_at(b"wrong", 0)
        .unwrap();
    assert_eq!(at_once(11, len), None);
    assert_eq!((tier.corrupt(), tier.held()), (0, vec![SampleId(11)]));
}

#[test]
fn lost_and_shortened_data_files_are_misses() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    for sample in [5, 6, 10] {
        assert_eq!(keep(&tier, sample), Kept::Yes);
    }
    fs::OpenOptions::new()
        .write(true)
        .open(&data_files(&spec)[1])
        .unwrap()
        .set_len(3)
        .unwrap();
    assert_eq!(
        (read(&tier, 5).is_some(), read(&tier, 6), tier.corrupt()),
        (true, None, 1)
    );
    drop(tier);
    fs::remove_file(&data_files(&spec)[2]).unwrap();
    let tier = open(&spec);
    assert_eq!(held(&tier), [5]);
    assert_eq!([6, 10].map(|sample| keep(&tier, sample)), [Kept::Yes; 2]);
    assert_eq!(held(&tier), [5, 6, 10]);
}

#[test]
fn the_index_does_not_grow_with_history() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let tier = open(&spec);
    keep(&tier, 11);
    for _ in 0..10_000 {
        keep(&tier, 2);
        tier.evict(SampleId(2));
    }
    assert!(fs::metadata(sub_folder(&spec).join(INDEX)).unwrap().len() < 80 << 10);
    drop(tier);
    assert_eq!(held(&open(&spec)), [11]);
}

#[test]
fn who_evicts_or_looks_does_not_wait_for_a_log_that_is_being_written() {
    let folder = TempDir::new().unwrap();
    let tier = open(&spec(folder.path(), 1000));
    assert_eq!([keep(&tier, 8), keep(&tier, 9)], [Kept::Yes; 2]);
    let _written = locked(&tier.log);
    tier.evict(SampleId(8));
    let mut into = bytes(9, 1);
    assert!(tier.read_at_once(SampleId(9), &mut into).unwrap() && into == bytes(9, 0));
    assert_eq!(tier.held(), [SampleId(9)]);
}

#[test]
fn an_eviction_is_noted_by_whoever_keeps_the_next_sample() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let records = || {
        let len = fs::metadata(sub_folder(&spec).join(INDEX)).unwrap().len();
        (len - HEADER_BYTES) / RECORD_BYTES
    };
    let tier = open(&spec);
    assert_eq!([keep(&tier, 2), keep(&tier, 3)], [Kept::Yes; 2]);
    tier.evict(SampleId(2));
    tier.evict(SampleId(3));
    assert_eq!(records(), 2, "nothing is written");
    assert_eq!(keep(&tier, 3), Kept::Yes);
    assert_eq!(records(), 5);
    tier.evict(SampleId(3));
    drop(tier);
    assert_eq!(records(), 6, "at the end all is noted");
    assert!(held(&open(&spec)).is_empty());
}

#[test]
fn an_evicted_sample_keeps_its_bytes_until_its_reader_is_done() {
    let folder = TempDir::new().unwrap();
    let tier = open(&spec(folder.path(), 100));
    assert_eq!(keep(&tier, 8), Kept::Yes);
    let reader = tier.index().get(SampleId(8)).cloned().unwrap();
    tier.evict(SampleId(8));
    assert_eq!(tier.stats().held, Bytes(0));
    assert_eq!(tier.index().extents.free(), 0);
    std::thread::scope(|scope| {
        let keeping = scope.spawn(|| keep(&tier, 9));
        std::thread::sleep(Duration::from_millis(20));
        let mut into = bytes(8, 1);
        assert!(tier.fetch(&reader, &mut into).unwrap().is_some() && into == bytes(8, 0));
        tier.done_reading(reader);
        assert_eq!(
            keeping.join().unwrap(),
            Kept::Yes,
            "it waits for the room that is about to be free"
        );
    });
    assert_eq!(held(&tier), [9]);
}

#[test]
fn asking_for_another_length_is_an_error_that_says_so() {
    let folder = TempDir::new().unwrap();
    let tier = open(&spec(folder.path(), 1000));
    keep(&tier, 2);
    let error = tier.read(SampleId(2), &mut [0; 9]).unwrap_err().to_string();
    assert!(
        error.ends_with("cache): read sample 2: 10 bytes are held, 9 are asked for"),
        "{error}"
    );
    assert_eq!(held(&tier), [2]);
}

#[test]
fn only_the_owner_can_look_into_it() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    let tier = open(&spec);
    keep(&tier, 8);
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(
        [&spec.folder, &sub_folder(&spec)].map(|path| mode(path)),
        [0o700; 2]
    );
    let files = fs::read_dir(sub_folder(&spec))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.chain([spec.folder.join(MARK)]).collect();
    assert!(
        files.len() == 5 && files.iter().all(|path| mode(path) == 0o600),
        "{files:?}"
    );
}

#[test]
fn refuses_a_folder_that_holds_something_else() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    fs::create_dir(&spec.folder).unwrap();
    let data = spec.folder.join("data-00000");
    fs::write(&data, "mine").unwrap();
    assert!(
        refusal(&spec)
            .contains("is not empty and was not made by foresee; choose an empty or a new folder")
    );
    assert_eq!(fs::read_to_string(&data).unwrap(), "mine");
    fs::rename(&data, spec.folder.join("lost+found")).unwrap();
    open(&spec);
}

#[test]
fn refuses_a_mark_that_is_a_link_damaged_or_of_another_version() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    open(&spec);
    let mark = spec.folder.join(MARK);
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&mark, &elsewhere).unwrap();
    symlink(&elsewhere, &mark).unwrap();
    assert!(refusal(&spec).contains("its mark .foresee is a symbolic link; choose another folder"));
    fs::remove_file(&mark).unwrap();
    fs::write(&mark, "version 2\n").unwrap();
    assert!(refusal(&spec).contains("its mark .foresee is damaged"));
    let text = fs::read_to_string(&elsewhere).unwrap();
    fs::write(&mark, text.replace("version 1", "version 2")).unwrap();
    assert!(refusal(&spec).contains("is of another version of foresee"));
}

#[test]
fn refuses_what_cannot_be_a_tier_in_one_line() {
    let folder = TempDir::new().unwrap();
    let good = spec(folder.path(), 100);
    fs::write(folder.path().join("file"), "").unwrap();
    let path = |path: &str| DiskSpec {
        folder: folder.path().join(path),
        ..good.clone()
    };
    let name = |name: &str| DiskSpec {
        name: name.to_owned(),
        ..good.clone()
    };
    let capacity = |bytes| DiskSpec {
        capacity: Bytes(bytes),
        ..good.clone()
    };
    let cases = [
        (path("file"), "is not a folder; choose another path"),
        (path("file/below"), "is not a folder; choose another path"),
        (name("../other"), "is no name for a sub-folder"),
        (name(".hidden"), "is no name for a sub-folder"),
        (name(""), "is no name for a sub-folder"),
        (
            capacity(0),
            "capacity is 0; give the tier a capacity, or leave it out",
        ),
        (capacity(1 << 60), "lower the capacity"),
    ];
    for (spec, expected) in cases {
        let message = refusal(&spec);
        assert!(
            message.contains(expected) && !message.contains('\n'),
            "{message}"
        );
        assert!(message.contains(spec.folder.to_str().unwrap()), "{message}");
    }
}

#[test]
fn refuses_a_folder_without_permission_in_one_line() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o500)).unwrap();
    if fs::create_dir(folder.path().join("try")).is_ok() {
        println!("skipped: root may write everywhere");
        return;
    }
    let message = refusal(&spec);
    assert!(
        message.contains("no permission to create it; choose another folder"),
        "{message}"
    );
}

#[test]
fn refuses_a_folder_in_use_and_names_the_process() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    let tier = open(&spec);
    let expected = format!(
        "{NAME} is in use by process {} (another job)",
        std::process::id()
    );
    assert!(refusal(&spec).contains(&expected), "{}", refusal(&spec));
    let other_rank = open(&DiskSpec {
        name: "abc-rank1".to_owned(),
        ..spec.clone()
    });
    drop((tier, other_rank));
    open(&spec);
}

#[test]
fn ranks_that_start_together_share_a_new_folder() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 100);
    std::thread::scope(|scope| {
        for rank in 0..16 {
            let spec = DiskSpec {
                name: format!("abc-rank{rank}"),
                ..spec.clone()
            };
            scope.spawn(move || assert_eq!(keep(&open(&spec), 8), Kept::Yes));
        }
    });
}

#[test]
fn removes_what_is_meant_and_nobody_uses() {
    let folder = TempDir::new().unwrap();
    let remove_stale = |spec: &DiskSpec| {
        folder::remove_stale(&spec.folder(), |name| {
            name != NAME && name.ends_with("-rank0")
        })
    };
    let new = spec(folder.path(), 100);
    let of = |name: &str| DiskSpec {
        name: name.to_owned(),
        ..new.clone()
    };
    for name in ["old-rank0", "old-rank1", "old-rank10", "odd-rank0"] {
        assert_eq!(keep(&open(&of(name)), 8), Kept::Yes);
    }
    let used = open(&of("used-rank0"));
    let _new = open(&new);
    fs::create_dir(new.folder.join("mine-rank0")).unwrap();
    fs::write(new.folder.join("mine-rank0/index"), "mine").unwrap();
    fs::write(new.folder.join("odd-rank0/mine"), "mine").unwrap();
    symlink("mine-rank0", new.folder.join("link-rank0")).unwrap();
    assert_eq!(remove_stale(&new).unwrap(), ["old-rank0"]);
    assert_eq!(
        fs::read_to_string(new.folder.join("mine-rank0/index")).unwrap(),
        "mine"
    );
    assert_eq!(
        fs::read_to_string(new.folder.join("odd-rank0/mine")).unwrap(),
        "mine"
    );
    assert_eq!(
        ["old-rank1", "old-rank10"].map(|name| held(&open(&of(name)))),
        [[8]; 2]
    );
    drop(used);
    assert_eq!(remove_stale(&new).unwrap(), ["used-rank0"]);
    let unmarked = DiskSpec {
        folder: folder.path().to_owned(),
        ..new.clone()
    };
    assert!(
        remove_stale(&unmarked).is_err(),
        "a folder without a mark is not ours"
    );
}

#[test]
fn keeps_nothing_more_where_the_floor_would_be_crossed() {
    let folder = TempDir::new().unwrap();
    let spec = DiskSpec {
        floor: Bytes(1 << 60),
        ..spec(folder.path(), 1000)
    };
    let tier = open(&spec);
    assert_eq!([keep(&tier, 8), keep(&tier, 9)], [Kept::NoRoom; 2]);
    let reason = tier.degraded().unwrap();
    assert!(
        reason.contains("cannot grow")
            && reason.ends_with("1152921504606846976 B are to stay free"),
        "{reason}"
    );
    assert_eq!(data_files(&spec), [] as [PathBuf; 0]);
}

const CHILD_FOLDER: &str = "FORESEE_TEST_DISK_TIER";

/// Keeps and evicts until the process is killed; does nothing unless it is the child of the test below.
#[test]
fn child_that_fills_until_it_is_killed() {
    let Some(folder) = std::env::var_os(CHILD_FOLDER) else {
        return;
    };
    let tier = open(&spec(Path::new(&folder), 500));
    for step in 0u32.. {
        keep(&tier, step.wrapping_mul(7) % SIZES.len() as u32);
        tier.evict(SampleId(step.wrapping_mul(5) % SIZES.len() as u32));
    }
}

/// Waits until a process that has just begun has changed much.
fn await_progress(index: &Path) {
    let begun = Instant::now();
    while fs::metadata(index).map_or(0, |found| found.len()) < 8 << 10 {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the child does nothing"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_process_killed_while_filling_leaves_a_cache_that_is_good() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 500);
    for round in 0..8 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "tier::disk::tests::child_that_fills_until_it_is_killed",
            ])
            .env(CHILD_FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        await_progress(&sub_folder(&spec).join(INDEX));
        std::thread::sleep(Duration::from_millis(3 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let tier = open(&spec);
        assert!(sub_folder(&spec).join(LOCK).exists());
        held(&tier);
        assert_eq!(tier.corrupt(), 0);
    }
}

#[test]
fn what_was_changed_on_its_way_to_the_disk_is_a_miss() {
    let folder = TempDir::new().unwrap();
    let tier = open(&spec(folder.path(), 1000));
    let sum = DiskTier::sum(&bytes(5, 0));
    assert_eq!(
        tier.keep_summed(SampleId(5), &bytes(5, 1), sum, None)
            .unwrap(),
        Kept::Yes
    );
    assert_eq!(read(&tier, 5), None);
    assert_eq!(tier.corrupt(), 1);
}

#[test]
fn what_others_may_write_is_refused_unless_it_is_trusted() {
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let trusting = DiskSpec {
        trusted: true,
        ..spec.clone()
    };
    assert_eq!(keep(&open(&spec), 5), Kept::Yes);
    let sub_folder = spec.folder.join(NAME);
    for path in [&spec.folder, &sub_folder] {
        fs::set_permissions(path, PermissionsExt::from_mode(0o770)).unwrap();
        let expected = format!(
            "cache folder {} can be written by others (mode 770); choose another one",
            path.display()
        );
        assert!(
            objection(&spec).starts_with(&expected),
            "{}",
            objection(&spec)
        );
        assert!(objection(&spec).ends_with("or trust it (trust_folder = true)"));
        assert_eq!(held(&open(&trusting)), [5]);
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let files = [
        spec.folder.join(".foresee"),
        sub_folder.join("foresee.lock"),
        sub_folder.join("index"),
        data_file(&spec),
    ];
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o662)).unwrap();
        let said = objection(&spec);
        assert!(
            said.contains(&format!(
                "its file {name} can be written by others (mode 662); "
            )),
            "{said}"
        );
        assert_eq!(held(&open(&trusting)), [5]);
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    }
    assert_eq!(held(&open(&spec)), [5]);
}

#[test]
fn what_somebody_else_made_is_refused_unless_it_is_trusted() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files to somebody else");
        return;
    }
    let folder = TempDir::new().unwrap();
    let spec = spec(folder.path(), 1000);
    let trusting = DiskSpec {
        trusted: true,
        ..spec.clone()
    };
    assert_eq!(keep(&open(&spec), 5), Kept::Yes);
    let sub_folder = spec.folder.join(NAME);
    let files = [
        spec.folder.join(".foresee"),
        sub_folder.join("foresee.lock"),
        sub_folder.join("index"),
        data_file(&spec),
    ];
    for path in [&spec.folder, &sub_folder].into_iter().chain(&files) {
        chown(path, Some(12345), None).unwrap();
        let said = objection(&spec);
        assert!(
            said.contains(" belongs to user 12345, and this is user 0; "),
            "{said}"
        );
        assert_eq!(held(&open(&trusting)), [5]);
        chown(path, Some(0), None).unwrap();
    }
    assert_eq!(held(&open(&spec)), [5]);
}

/// Why a tier of small segments is refused.
fn objection(spec: &DiskSpec) -> String {
    DiskTier::open_in_segments(spec, 64)
        .unwrap_err()
        .to_string()
}

/// The first data file of a tier.
fn data_file(spec: &DiskSpec) -> PathBuf {
    spec.folder.join(NAME).join("data-00000")
}
