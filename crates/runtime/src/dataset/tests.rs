//! Datasets as their users meet them: orders as Python's, one-line errors, and saved catalogs that are never trusted too
//! much.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use foresee_core::ids::SampleId;
use foresee_core::units::Bytes;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::stamp::Stamp;

const UNSAVED: Listing<'_> = Listing {
    cache: None,
    trusted: false,
    threads: 3,
    progress: None,
    mesh: None,
    patience: PATIENCE_MAX,
};

fn saving(cache: &Path) -> Listing<'_> {
    Listing {
        cache: Some(cache),
        ..UNSAVED
    }
}

/// A folder with these files, each of which holds its own name.
fn tree(files: &[&str]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for file in files {
        add(root.path(), file);
    }
    root
}

fn add(root: &Path, file: &str) {
    let path = root.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, file).unwrap();
}

/// Sets a folder's or file's time: `seconds` ago.
fn age(path: &Path, seconds: u64) {
    let then = SystemTime::now() - Duration::from_secs(seconds);
    File::open(path).unwrap().set_modified(then).unwrap();
}

/// Lets all that was written rest until it is trusted: times of change cannot be set.
fn rest() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// Paths below `root`, with labels.
fn listed(dataset: &Dataset, root: &Path) -> Vec<(String, i64)> {
    let below = |sample| {
        dataset
            .path(sample)
            .strip_prefix(root)
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned()
    };
    dataset
        .catalog()
        .samples()
        .map(|sample| (below(sample), dataset.label(sample)))
        .collect()
}

fn image_folder(root: &TempDir) -> Result<Dataset, DatasetError> {
    Dataset::image_folder(root.path(), &UNSAVED)
}

#[test]
fn class_folders_have_the_order_and_labels_of_torchvision() {
    let root = tree(&[
        "b/1.jpg",
        "b/10.jpg",
        "b/2.JPEG",
        "b/sub/0.png",
        "b/sub-x/0.png",
        "b/sub/deep/z.webp",
        "b/.jpg",
        "b/notes.txt",
        "a/x.tiff",
        "a/x.tif.bak",
        "a/Z.PPM",
        "a/\u{e9}.bmp",
        "a.b/k.pgm",
        "B/only.Jpg",
        "top.jpg",
    ]);
    symlink("../a", root.path().join("b/link")).unwrap();
    let dataset = image_folder(&root).unwrap();
    // Made with Python 3.11 by the loops of torchvision's find_classes and make_dataset.
    let expected = [
        ("B/only.Jpg", 0),
        ("a/Z.PPM", 1),
        ("a/x.tiff", 1),
        ("a/\u{e9}.bmp", 1),
        ("a.b/k.pgm", 2),
        ("b/.jpg", 3),
        ("b/1.jpg", 3),
        ("b/10.jpg", 3),
        ("b/2.JPEG", 3),
        ("b/link/Z.PPM", 3),
        ("b/link/x.tiff", 3),
        ("b/link/\u{e9}.bmp", 3),
        ("b/sub/0.png", 3),
        ("b/sub-x/0.png", 3),
        ("b/sub/deep/z.webp", 3),
    ];
    assert_eq!(
        listed(&dataset, root.path()),
        expected.map(|(path, label)| (path.to_owned(), label))
    );
    assert_eq!(dataset.classes(), ["B", "a", "a.b", "b"]);
    assert_eq!(
        dataset.catalog().size(SampleId(0)),
        Bytes("B/only.Jpg".len() as u64)
    );
    assert_eq!(dataset.describe(), root.path().display().to_string());
    assert!(dataset.has_labels());
}

/// `ImageFolder` as torchvision has it, on strings.
fn naive(root: &Path) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    let (mut classes, _) = names(root);
    classes.sort();
    for (label, class) in classes.iter().enumerate() {
        let mut folders = Vec::new();
        naive_walk(&format!("{}/{class}", root.display()), &mut folders);
        folders.sort();
        for (folder, mut files) in folders {
            files.sort();
            files.retain(|file| {
                EXTENSIONS
                    .iter()
                    .any(|end| file.to_lowercase().ends_with(end))
            });
            let below = folder
                .strip_prefix(&format!("{}/", root.display()))
                .unwrap();
            found.extend(
                files
                    .iter()
                    .map(|file| (format!("{below}/{file}"), i64::try_from(label).unwrap())),
            );
        }
    }
    found
}

fn naive_walk(folder: &str, folders: &mut Vec<(String, Vec<String>)>) {
    let (below, files) = names(Path::new(folder));
    folders.push((folder.to_owned(), files));
    for name in below {
        naive_walk(&format!("{folder}/{name}"), folders);
    }
}

/// Folders and files, links followed.
fn names(folder: &Path) -> (Vec<String>, Vec<String>) {
    let all = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    all.partition(|name| folder.join(name).is_dir())
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "a",
        "a-b",
        "a.b",
        "A",
        "b",
        "a b",
        "\u{e9}",
        "\u{1f600}",
        "10",
        "9",
        "x.jpg",
    ])
}

fn file() -> impl Strategy<Value = String> {
    let end = prop::sample::select(vec![
        ".jpg", ".JPEG", ".png", ".txt", "", ".jpg.gz", ".WebP",
    ]);
    let folders = prop::collection::vec(name(), 1..4);
    (folders, name(), end)
        .prop_map(|(folders, name, end)| format!("{}/{name}{end}", folders.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tree_is_listed_as_by_the_naive_way(
        files in prop::collection::vec(file(), 1..40),
        links in prop::collection::vec((name(), name()), 0..3),
        threads in 1_usize..5,
    ) {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(&file);
            // What is a file already is no folder.
            if fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.is_dir() {
                fs::write(path, file).unwrap();
            }
        }
        let elsewhere = tree(&["far/1.jpg", "2.png"]);
        for class in names(root.path()).0 {
            add(root.path(), &format!("{class}/one.png"));
        }
        for (class, link) in links {
            if root.path().join(class).is_dir() {
                // It may be there already.
                let _ = symlink(elsewhere.path(), root.path().join(class).join(link));
            }
        }
        let dataset = match Dataset::image_folder(root.path(), &Listing { threads, ..UNSAVED }) {
            Err(DatasetError::NoClasses(_)) => return Ok(()),
            dataset => dataset.unwrap(),
        };
        prop_assert_eq!(listed(&dataset, root.path()), naive(root.path()));
        let sizes_are_right = dataset.catalog().samples().all(|sample| {
            dataset.catalog().size(sample).0 == fs::metadata(dataset.path(sample)).unwrap().len()
        });
        prop_assert!(sizes_are_right);
    }
}

#[track_caller]
fn assert_refused(result: Result<Dataset, DatasetError>, parts: &[&str]) {
    let text = result.unwrap_err().to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    assert_eq!(text.lines().count(), 1);
}

#[test]
fn a_folder_that_is_no_dataset_is_refused_with_what_where_and_the_remedy() {
    let root = tree(&[
        "plain/file.txt",
        "mixed/a/1.jpg",
        "mixed/b/1.txt",
        "mixed/c/d/1.gif",
    ]);
    fs::create_dir(root.path().join("empty")).unwrap();
    let refused = |name: &str, parts: &[&str]| {
        let path = root.path().join(name);
        let place = path.display().to_string();
        assert_refused(
            Dataset::image_folder(&path, &UNSAVED),
            &[parts, &[&place]].concat(),
        );
    };
    refused("nowhere", &["no such folder", "check the path"]);
    refused("plain/file.txt", &["not a folder"]);
    refused("empty", &["is empty", "mounted"]);
    refused("plain", &["no class folders", "list of files"]);
    refused("mixed", &["class b, c:", ".jpeg", "remove the folder"]);
}

#[test]
fn links_that_lead_back_are_refused() {
    for (link, target) in [
        ("a/back", ".."),
        ("a/b/up", "../../a"),
        ("self", "."),
        ("a/loop.d", "loop.d"),
    ] {
        let root = tree(&["a/1.jpg", "a/b/1.jpg"]);
        symlink(target, root.path().join(link)).unwrap();
        assert_refused(
            image_folder(&root),
            &[
                "leads back to itself",
                "remove it",
                &root.path().display().to_string(),
            ],
        );
    }
}

#[test]
fn a_folder_linked_to_twice_is_listed_twice() {
    let root = tree(&["a/1.jpg"]);
    let twice = root.path().join("b");
    fs::create_dir(&twice).unwrap();
    symlink("../a", twice.join("x")).unwrap();
    symlink("../a", twice.join("y")).unwrap();
    assert_eq!(image_folder(&root).unwrap().len(), 3);
}

#[test]
fn an_unreadable_folder_is_refused() {
    let root = tree(&["a/1.jpg", "a/b/1.jpg"]);
    let closed = root.path().join("a/b");
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
    // The superuser reads everything.
    if fs::read_dir(&closed).is_err() {
        assert_refused(
            image_folder(&root),
            &[&closed.display().to_string(), "make it readable"],
        );
    }
    fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn a_link_that_leads_nowhere_and_a_socket_are_no_samples() {
    let root = tree(&["a/1.jpg"]);
    let path = root.path().join("a/2.jpg");
    symlink("nothing", &path).unwrap();
    assert_refused(
        image_folder(&root),
        &[&path.display().to_string(), "no such file"],
    );
    fs::remove_file(&path).unwrap();
    let _socket = UnixListener::bind(&path).unwrap();
    assert_refused(
        image_folder(&root),
        &[&path.display().to_string(), "not a regular file"],
    );
}

#[test]
fn sample_k_of_a_list_is_its_kth_path() {
    let root = tree(&["x/2", "1", "y/3"]);
    let paths = ["y/3", "x/2", "1", "x/2"].map(|name| root.path().join(name));
    let dataset = Dataset::files(paths.to_vec(), Some(vec![7, -1, 0, 7]), &UNSAVED).unwrap();
    let samples = || dataset.catalog().samples();
    assert_eq!(
        samples()
            .map(|sample| dataset.path(sample))
            .collect::<Vec<_>>(),
        paths
    );
    assert_eq!(
        samples()
            .map(|sample| dataset.label(sample))
            .collect::<Vec<_>>(),
        [7, -1, 0, 7]
    );
    assert_eq!(
        samples()
            .map(|sample| dataset.catalog().size(sample).0)
            .collect::<Vec<_>>(),
        [3, 3, 1, 3]
    );
    assert_eq!(
        (dataset.describe().as_str(), dataset.classes().len()),
        ("4 files", 0)
    );
}

#[test]
fn without_labels_every_label_is_zero() {
    let root = tree(&["1"]);
    let dataset = Dataset::files(vec![root.path().join("1")], None, &UNSAVED).unwrap();
    assert_eq!(
        (dataset.has_labels(), dataset.label(SampleId(0))),
        (false, 0)
    );
}

#[test]
fn a_bad_list_of_files_is_refused() {
    let root = tree(&["1", "d/2"]);
    let files = |names: &[&str], labels| {
        Dataset::files(
            names.iter().map(|name| root.path().join(name)).collect(),
            labels,
            &UNSAVED,
        )
    };
    assert_refused(files(&[], None), &["list is empty"]);
    assert_refused(files(&["1"], Some(vec![1, 2])), &["2 labels for 1 paths"]);
    assert_refused(files(&["1", "d"], None), &["/d: a folder, not a file"]);
    assert_refused(files(&["1", "d/.."], None), &["/d/..: a folder"]);
    assert_refused(
        Dataset::files(vec!["".into()], None, &UNSAVED),
        &["an empty path"],
    );
}

#[test]
fn of_many_bad_files_the_first_is_named() {
    let root = tree(&["1"]);
    let mut paths = vec![root.path().join("1"); 5000];
    (1000..5000).for_each(|index| paths[index] = root.path().join(format!("gone-{index}")));
    for _ in 0..20 {
        assert_refused(
            Dataset::files(
                paths.clone(),
                None,
                &Listing {
                    threads: 8,
                    ..UNSAVED
                },
            ),
            &["gone-1000: no such"],
        );
    }
}

#[test]
fn a_manifest_lists_files_from_its_own_folder() {
    let root = tree(&["m/a/1.bin", "2.bin"]);
    let manifest = root.path().join("m/list.tsv");
    fs::write(
        &manifest,
        format!(
            "# mine\na/1.bin\t5\n\n{}\t6\n",
            root.path().join("2.bin").display()
        ),
    )
    .unwrap();
    let dataset = Dataset::manifest(&manifest, &UNSAVED).unwrap();
    let expected = [("m/a/1.bin".to_owned(), 5), ("2.bin".to_owned(), 6)];
    assert_eq!(listed(&dataset, root.path()), expected);
    assert_eq!(dataset.describe(), manifest.display().to_string());
}

#[test]
fn a_bad_manifest_is_refused_with_its_line() {
    let root = tree(&["1"]);
    let manifest = root.path().join("list");
    let refused = |text: &str, parts: &[&str]| {
        fs::write(&manifest, text).unwrap();
        let place = manifest.display().to_string();
        assert_refused(
            Dataset::manifest(&manifest, &UNSAVED),
            &[parts, &[&place]].concat(),
        );
    };
    refused("", &["names no file"]);
    refused("1\n\n2\n", &["line 3:", "/2: no such file"]);
    refused("1,one\n", &["line 1:", "`one` is no whole number"]);
    fs::remove_file(&manifest).unwrap();
    assert_refused(
        Dataset::manifest(&manifest, &UNSAVED),
        &["list: No such file"],
    );
}

#[test]
fn progress_only_grows_and_reaches_the_end() {
    let names: Vec<_> = (0..1000).map(|index| format!("a/{index}.png")).collect();
    let root = tree(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let last = AtomicU64::new(0);
    let progress = |done| assert!(last.swap(done, Ordering::Relaxed) < done);
    Dataset::image_folder(
        root.path(),
        &Listing {
            progress: Some(&progress),
            ..UNSAVED
        },
    )
    .unwrap();
    assert_eq!(last.into_inner(), 1000);
}

#[test]
fn a_dataset_is_its_resolved_path_with_its_names_and_sizes() {
    let root = tree(&["v1/a/1.png", "v1/b/2.png"]);
    let before = root.path().join("v1");
    let after = root.path().join("v2");
    let digest = |root: &Path| Dataset::image_folder(root, &UNSAVED).unwrap().digest();
    let mut digests = vec![digest(&before)];
    let link = root.path().join("cur");
    symlink("v1", &link).unwrap();
    age(&before.join("a/1.png"), 50);
    assert_eq!(
        digest(&link),
        digests[0],
        "whichever way leads there, and whenever it was written"
    );
    fs::rename(&before, &after).unwrap();
    digests.push(digest(&after));
    fs::write(after.join("b/2.png"), "longer than before").unwrap();
    digests.push(digest(&after));
    fs::rename(after.join("b/2.png"), after.join("b/3.png")).unwrap();
    digests.push(digest(&after));
    fs::rename(after.join("b"), after.join("c")).unwrap();
    digests.push(digest(&after));
    let paths = vec![after.join("a/1.png"), after.join("c/3.png")];
    let listed = |labels| {
        Dataset::files(paths.clone(), labels, &UNSAVED)
            .unwrap()
            .digest()
    };
    assert_eq!(listed(None), digest(&after));
    assert_eq!(
        listed(None),
        listed(Some(vec![0, 1])),
        "labels are not among its bytes"
    );
    let elsewhere = tree(&["3.png"]);
    fs::write(
        elsewhere.path().join("3.png"),
        fs::read(after.join("c/3.png")).unwrap(),
    )
    .unwrap();
    fs::remove_file(after.join("c/3.png")).unwrap();
    symlink(elsewhere.path().join("3.png"), after.join("c/3.png")).unwrap();
    digests.push(listed(None));
    let all = digests.len();
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), all);
}

/// The only file in the folder of saved catalogs.
fn saved_file(cache: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(cache).ok()?.map(|entry| entry.unwrap().path());
    let first = files.next();
    assert!(files.next().is_none());
    first
}

/// Sizes of all samples.
fn sizes(dataset: &Dataset) -> Vec<u64> {
    let catalog = dataset.catalog();
    catalog
        .samples()
        .map(|sample| catalog.size(sample).0)
        .collect()
}

#[test]
fn a_saved_catalog_is_reused_until_a_folder_changes() {
    let root = tree(&["a/1.png", "a/2.png", "b/c/3.png"]);
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().join("made/for/it");
    let open = || Dataset::image_folder(root.path(), &saving(&cache)).unwrap();
    rest();
    let first = open();
    fs::write(
        root.path().join("a/1.png"),
        b"in place, which its folder does not show",
    )
    .unwrap();
    assert_eq!(open(), first);
    let folder = root.path().join("b/c");
    let before = fs::metadata(&folder).unwrap().modified().unwrap();
    add(root.path(), "b/c/4.png");
    File::open(&folder).unwrap().set_modified(before).unwrap();
    assert_eq!(
        open().len(),
        4,
        "a time of modification can be set, the time of change tells"
    );
}

#[test]
fn a_saved_catalog_of_files_that_have_other_sizes_is_listed_again() {
    let root = tree(&["a/1.png", "a/2.png"]);
    let cache = tempfile::tempdir().unwrap();
    let open = || Dataset::image_folder(root.path(), &saving(cache.path())).unwrap();
    rest();
    let dataset = open();
    let digest = dataset.digest();
    fs::write(root.path().join("a/1.png"), b"other").unwrap();
    assert_eq!(sizes(&open()), [7, 7], "nobody has looked yet");
    dataset.measure_again().unwrap();
    assert_eq!(sizes(&dataset), [5, 7]);
    assert_ne!(dataset.digest(), digest);
    assert_eq!(sizes(&open()), [5, 7]);
    fs::write(root.path().join("a/2.png"), b"too").unwrap();
    open().forget();
    assert_eq!(sizes(&open()), [5, 3]);
}

#[test]
fn a_link_that_leads_to_another_dataset_now_is_listed_again() {
    let root = tree(&["v1/a/1.png", "v2/a/1.png", "v2/a/2.png"]);
    let cache = tempfile::tempdir().unwrap();
    let link = root.path().join("cur");
    for folder in ["v1/a", "v1", "v2/a", "v2"] {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        File::open(root.path().join(folder))
            .unwrap()
            .set_modified(then)
            .unwrap();
    }
    rest();
    let open = || Dataset::image_folder(&link, &saving(cache.path())).unwrap();
    let digests = [("v1", 1), ("v2", 2), ("v1", 1)].map(|(version, samples)| {
        let _ = fs::remove_file(&link);
        symlink(version, &link).unwrap();
        let dataset = open();
        assert_eq!(dataset.len(), samples, "{version}");
        assert_eq!(dataset, open(), "{version}, saved");
        dataset.digest()
    });
    assert_eq!(digests[0], digests[2]);
    assert_ne!(digests[0], digests[1]);
}

#[test]
fn lists_and_manifests_are_saved_and_reused_too() {
    let root = tree(&["a/1", "b/2", "m/list"]);
    let cache = tempfile::tempdir().unwrap();
    let paths = ["a/1", "b/2"].map(|name| root.path().join(name));
    let manifest = root.path().join("m/list");
    fs::write(&manifest, "../a/1\n../b/2\n").unwrap();
    rest();
    let files = |labels| Dataset::files(paths.to_vec(), labels, &saving(cache.path()));
    let listed = || Dataset::manifest(&manifest, &saving(cache.path()));
    let plain = files(None).unwrap();
    let labelled = files(Some(vec![1, 2])).unwrap();
    let manifested = listed().unwrap();
    fs::write(&paths[0], b"in place").unwrap();
    assert_eq!(files(None).unwrap(), plain);
    assert_eq!(files(Some(vec![1, 2])).unwrap(), labelled);
    assert_eq!(listed().unwrap(), manifested);
    assert_eq!(
        sizes(&files(Some(vec![2, 1])).unwrap()),
        [8, 3],
        "a list of its own"
    );
    fs::write(&manifest, "../b/2\n").unwrap();
    assert_eq!(listed().unwrap().len(), 1);
}

#[test]
fn what_the_times_of_files_come_to_is_known_once_all_have_rested() {
    let root = tree(&["a/1.jpg", "a/2.jpg"]);
    assert_eq!(image_folder(&root).unwrap().measured().times, None);
    let older = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    let file = fs::File::open(root.path().join("a/2.jpg")).unwrap();
    file.set_times(older).unwrap();
    rest();
    let times = ["a/1.jpg", "a/2.jpg"]
        .map(|file| Stamp::of_path(&root.path().join(file)).unwrap().0.times());
    assert_ne!(times[0], times[1]);
    let dataset = image_folder(&root).unwrap();
    assert_eq!(dataset.measured().times.as_deref(), Some(&times[..]));
    let part = dataset
        .part(&[SampleId(1), SampleId(1), SampleId(0)])
        .unwrap();
    let times = [times[1], times[1], times[0]];
    assert_eq!(part.measured().times.as_deref(), Some(&times[..]));
}

#[test]
fn a_folder_that_changed_just_now_is_listed_again() {
    let root = tree(&["a/1.png", "a/2.png"]);
    let cache = tempfile::tempdir().unwrap();
    Dataset::image_folder(root.path(), &saving(cache.path())).unwrap();
    assert_eq!(saved_file(cache.path()), None);
}

#[test]
fn a_damaged_saved_catalog_is_made_anew() {
    let root = tree(&["a/1.png", "b/2.png"]);
    let cache = tempfile::tempdir().unwrap();
    rest();
    let open = || Dataset::image_folder(root.path(), &saving(cache.path())).unwrap();
    let first = open();
    let saved = saved_file(cache.path()).unwrap();
    let good = fs::read(&saved).unwrap();
    // Of these the decoder's own test tries all.
    for at in (0..good.len()).step_by(61) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        fs::write(&saved, bad).unwrap();
        assert_eq!(open(), first, "byte {at}");
        assert_eq!(fs::read(&saved).unwrap().len(), good.len());
        fs::write(&saved, &good[..at]).unwrap();
        assert_eq!(open(), first, "{at} bytes");
    }
    fs::remove_file(&saved).unwrap();
    fs::create_dir(&saved).unwrap();
    assert_eq!(open(), first);
}

#[test]
fn the_saved_catalog_of_another_dataset_is_not_used() {
    let one = tree(&["a/1.png"]);
    let two = tree(&["b/2.png"]);
    let cache = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    rest();
    Dataset::image_folder(one.path(), &saving(cache.path())).unwrap();
    Dataset::image_folder(two.path(), &saving(other.path())).unwrap();
    fs::copy(
        saved_file(cache.path()).unwrap(),
        saved_file(other.path()).unwrap(),
    )
    .unwrap();
    assert_eq!(
        Dataset::image_folder(two.path(), &saving(other.path()))
            .unwrap()
            .classes(),
        ["b"]
    );
}

#[test]
fn a_cache_folder_that_cannot_be_written_costs_nothing_but_the_listing() {
    let root = tree(&["a/1.png", "file"]);
    rest();
    assert_eq!(
        Dataset::image_folder(root.path(), &saving(&root.path().join("file")))
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn saved_catalogs_are_in_the_users_cache_folder() {
    let folder = |xdg: Option<&str>, home: Option<&str>| {
        cache_folder(|name| if name == "HOME" { home } else { xdg }.map(PathBuf::from))
    };
    assert_eq!(
        folder(Some("/c"), Some("/h")),
        Some("/c/foresee/catalogs".into())
    );
    assert_eq!(
        folder(None, Some("/h")),
        Some("/h/.cache/foresee/catalogs".into())
    );
    assert_eq!(
        folder(Some("relative"), Some("/h")),
        Some("/h/.cache/foresee/catalogs".into())
    );
    assert_eq!(folder(None, None), None);
}
