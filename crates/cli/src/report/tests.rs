//! Whole pages, with every kind of chart. They stay in `tmp` of the build's directory, where the tests in a browser
//! find them.

use std::collections::BTreeMap;
use std::fs;

use super::*;

const ORIGINS: [&str; 5] = ["source", "peer", "host_peer", "tier1", "tier2"];

fn by_origin<T: Copy>(values: [T; 5]) -> BTreeMap<String, T> {
    ORIGINS
        .iter()
        .map(ToString::to_string)
        .zip(values)
        .collect()
}

fn ran(policy: &str, total_s: f64, startup_s: f64, fetch_s: [f64; 5]) -> Outcome {
    Outcome {
        policy: policy.to_owned(),
        supported: true,
        reason: None,
        total_s: Some(total_s),
        startup_s: Some(startup_s),
        stall_s: Some(total_s / 10.0),
        first_batch_s: Some(startup_s + 0.37),
        epochs_s: vec![total_s],
        hit_ratio: Some(0.5),
        imbalanced_steps: Some(0.1),
        steps_s: BTreeMap::new(),
        reads: by_origin(fetch_s.map(|seconds| (seconds * 1250.0) as u64)),
        bytes: by_origin(fetch_s.map(|seconds| (seconds * 1.3e8) as u64)),
        fetch_s: by_origin(fetch_s),
    }
}

fn refused(policy: &str) -> Outcome {
    Outcome::unsupported(
        policy,
        "the dataset (1,431 GB) does not fit into the ranks' memory (819 GB)".to_owned(),
        3,
    )
}

/// A job of three hours, one policy far behind, one that cannot run, and a name that tries to be a script.
fn comparison() -> Comparison {
    Comparison {
        scenario: "imagenet-22k <script>document.title='owned'</script> & \"friends\"".to_owned(),
        lower_bound_s: 7653.0,
        source_minimum_bytes: 1_431_000_000_000,
        results: vec![
            ran("perfect", 7653.0, 0.0, [0.0; 5]),
            ran("naive", 98_425.9, 0.0, [180_000.0, 0.0, 0.0, 0.0, 0.0]),
            ran(
                "staging-buffer",
                9987.8,
                0.0,
                [60_000.0, 0.0, 0.0, 0.0, 0.0],
            ),
            ran(
                "deepio-ordered",
                24_047.8,
                1149.0,
                [24_000.0, 7000.0, 2000.0, 3000.0, 0.0],
            ),
            ran(
                "parallel-staging",
                9359.2,
                1649.0,
                [5000.0, 900.0, 0.0, 6000.0, 12_000.0],
            ),
            refused("lbann-dynamic"),
            ran(
                "distributed-cache",
                9254.8,
                1590.0,
                [11_000.0, 8000.0, 3000.0, 2000.0, 6000.0],
            ),
            ran(
                "locality-aware",
                9254.8,
                1590.0,
                [11_000.0, 900.0, 400.0, 4000.0, 9000.0],
            ),
            ran(
                "nopfs",
                7663.5,
                0.0,
                [14_000.0, 5000.0, 2500.0, 5000.0, 7000.0],
            ),
        ],
    }
}

fn frequency() -> Bars {
    let height = |uses: i32| 90_000.0 * (-f64::from((uses - 6) * (uses - 6)) / 11.0).exp();
    Bars {
        title: "Access frequency".to_owned(),
        x_title: "uses of a sample by one rank, over all epochs".to_owned(),
        y_title: "samples".to_owned(),
        bars: (0..19)
            .map(|uses| (uses.to_string(), height(uses).round()))
            .collect(),
        note: "Rank 0 of 16, 90 epochs.".to_owned(),
    }
}

fn reuse() -> Bars {
    let label = |power: u32| format!("{}\u{2013}{}", 1_u32 << power, (1_u32 << (power + 1)) - 1);
    Bars {
        title: "Reuse distance".to_owned(),
        x_title: "steps until the next use on the same host".to_owned(),
        y_title: "accesses".to_owned(),
        bars: (0..14)
            .map(|power| (label(power), f64::from(1_u32 << power) * 137.0))
            .collect(),
        note: String::new(),
    }
}

fn swept(keys: &[&str], values: &[&[&str]]) -> Sweep {
    let results = |scale: f64| {
        let last = if scale > 0.9 {
            refused("lbann-preload")
        } else {
            ran("lbann-preload", 7700.0 + 900.0 * scale, 0.0, [1.0; 5])
        };
        let mut results: Vec<Outcome> = comparison()
            .results
            .into_iter()
            .filter(|outcome| outcome.supported)
            .collect();
        for outcome in results.iter_mut().skip(2) {
            outcome.total_s = outcome
                .total_s
                .map(|total_s| 7653.0 + (total_s - 7653.0) * scale);
        }
        results.push(last);
        results
    };
    let mut settings: Vec<Vec<String>> = vec![Vec::new()];
    for key in values {
        settings = settings
            .iter()
            .flat_map(|before| {
                key.iter()
                    .map(|value| [before.clone(), vec![(*value).to_owned()]].concat())
            })
            .collect();
    }
    let count = settings.len() as f64;
    let point = |(at, values)| SweepPoint {
        values,
        results: results(1.0 - at as f64 / count),
    };
    Sweep {
        keys: keys.iter().map(ToString::to_string).collect(),
        points: settings.into_iter().enumerate().map(point).collect(),
    }
}

fn two_keys() -> Sweep {
    let ram = ["0", "10240", "20480", "40960", "81920"].as_slice();
    let ssd = ["0", "40960", "81920", "163840"].as_slice();
    swept(
        &["system.tier.1.capacity_mb", "system.tier.2.capacity_mb"],
        &[ram, ssd],
    )
}

fn page(sweep: Option<&Sweep>) -> Report<'_> {
    let inputs = [
        ("job.ranks", "16"),
        ("dataset.samples", "14,197,122"),
        ("system.tier.1.name", "<b>ram</b>"),
    ];
    Report {
        comparison: Box::leak(Box::new(comparison())),
        inputs: inputs
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec(),
        frequency: Some(frequency()),
        reuse: Some(reuse()),
        sweep,
    }
}

fn kept(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // BUILD_DIR/debug/deps/foresee-...
    let folder = test.ancestors().nth(3).unwrap().join("tmp");
    fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

fn written(name: &str, sweep: &Sweep) -> String {
    let path = kept(name);
    write(&page(Some(sweep)), &path).unwrap();
    fs::read_to_string(path).unwrap()
}

#[test]
fn a_sweep_of_two_keys_has_a_heat_map_for_each_policy() {
    let html = written("report-two-keys.html", &two_keys());
    let policies = comparison()
        .results
        .iter()
        .filter(|outcome| outcome.supported)
        .count()
        + 1;
    assert_eq!(html.matches("class=\"cell").count(), policies * 5 * 4);
    assert!(html.contains(
        "aria-label=\"nopfs: time by system.tier.1.capacity_mb and system.tier.2.capacity_mb\""
    ));
    assert!(html.contains("darker is slower"));
}

#[test]
fn a_sweep_of_one_key_has_a_line_or_bars_for_each_policy() {
    let html = written(
        "report-one-key.html",
        &swept(&["job.ranks"], &[&["4", "8", "16", "32", "64", "1024"]]),
    );
    assert!(
        html.contains("class=\"series\"")
            && html.contains("aria-label=\"nopfs: time by job.ranks\"")
    );
    let html = written(
        "report-names.html",
        &swept(&["job.shuffle"], &[&["feistel", "torch"]]),
    );
    assert!(!html.contains("class=\"series\""));
}

#[test]
fn text_from_outside_is_escaped_everywhere() {
    let mut hostile = comparison();
    for outcome in &mut hostile.results {
        outcome.policy = "</title><img src=x onerror=alert(1)>".to_owned();
        outcome.reason = outcome.reason.as_ref().map(|_| "<i>reason</i>".to_owned());
    }
    let mut sweep = two_keys();
    sweep.keys[0] = "<u>key</u>".to_owned();
    sweep.points[0].values[0] = "<s>value</s>".to_owned();
    let mut report = page(Some(&sweep));
    report.comparison = &hostile;
    report.frequency.as_mut().unwrap().bars[0].0 = "<q>bar</q>".to_owned();
    report.frequency.as_mut().unwrap().note = "<em>note</em>".to_owned();
    let html = render(&report).unwrap();
    for tag in ["<script", "<img", "<i>", "<u>", "<s>", "<q>", "<em>", "<b>"] {
        assert!(!html.contains(tag), "{tag}");
    }
    assert!(html.contains("&lt;script&gt;") && html.contains("&lt;em&gt;note"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let html = render(&page(Some(&two_keys()))).unwrap();
    for word in ["http://", "https://", "<script", "src=", "@import", "url(h"] {
        assert!(!html.contains(word), "{word}");
    }
}

#[test]
fn the_best_policy_is_the_fastest_that_is_real() {
    let html = render(&page(None)).unwrap();
    let tile = &html[html.find("Best policy").unwrap()..];
    assert!(
        tile[..200].contains("nopfs")
            && tile[..200].contains("2.129\u{a0}h, 1.001\u{d7} the lower bound"),
        "{}",
        &tile[..200]
    );
}

#[test]
fn parts_of_a_sweep_that_do_not_fit_together_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for keys in [&["a"] as &[&str], &["a", "b", "c"]] {
        let mut sweep = two_keys();
        sweep.keys = keys.iter().map(ToString::to_string).collect();
        let error = write(&page(Some(&sweep)), &folder.path().join("x.html")).unwrap_err();
        assert!(
            format!("{error:#}").contains("x.html: a sweep"),
            "{error:#}"
        );
    }
}

#[test]
fn a_comparison_without_results_is_a_page_too() {
    let empty = Comparison {
        scenario: "empty".into(),
        lower_bound_s: 0.0,
        source_minimum_bytes: 0,
        results: vec![],
    };
    let report = Report {
        comparison: &empty,
        inputs: vec![],
        frequency: None,
        reuse: None,
        sweep: None,
    };
    assert!(render(&report).unwrap().contains("<h1>empty</h1>"));
}

#[test]
fn the_old_page_is_replaced_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.html");
    fs::write(&path, "old").unwrap();
    write(&page(None), &path).unwrap();
    assert!(
        fs::read_to_string(&path)
            .unwrap()
            .starts_with("<!doctype html>")
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("latest.html");
    let target = folder.path().join("target.html");
    fs::write(&target, "old").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    write(&page(None), &link).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(
        fs::read_to_string(&target)
            .unwrap()
            .starts_with("<!doctype html>")
    );
}

#[test]
fn an_error_names_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/such/report.html");
    let said = |path: &Path| format!("{:#}", write(&page(None), path).unwrap_err());
    assert!(
        said(&missing).contains("no/such/report.html") && said(&missing).contains("no such folder"),
        "{}",
        said(&missing)
    );
    assert!(
        said(folder.path()).contains("is not a file"),
        "{}",
        said(folder.path())
    );
    assert!(
        check(&missing, "--report").is_err()
            && check(&folder.path().join("new.html"), "--report").is_ok()
    );
}

#[test]
fn texts_of_real_runs_are_escaped_everywhere() {
    let hostile = "</title><img src=x onerror=alert(1)>";
    let run = |name: String| {
        serde_json::json!({
            "name": name,
            "epochs": [{"total_s": 3.0, "stall_s": 1.0, "read_bytes": {"source": 9, "<i>": 1}}],
            "stats": {"policy": hostile, "first_batch_s": 0.1, "stall_by_s": {"source": 0.5, "<b>": 0.5},
                      "origins": {"source": {"bytes": 9}, "<u>": {"bytes": 4}},
                      "source_bytes": 9, "source_minimum_bytes": 9,
                      "balance": {"steps": 9, "late_by": [{"<u>": 3}], "steps_histogram": [[0.5, 9]],
                                  "late_steps": [{"step": 1, "late": [{"rank": 0, "waited_s": 0.1, "cause": "<i>"}]}],
                                  "threads_over_time": [[0, [2]]]}},
            "prediction": {"total_s": 2.5, "stall_s": 0.5, "bytes": {"source": 9, "<s>": 1}},
        })
    };
    let runs = serde_json::json!({"name": hostile, "inputs": {"<q>": "<em>"}, "lower_bound_s": 2.0,
        "runs": [run(hostile.to_owned()), run(format!("{hostile}2"))]});
    let html = filled(
        "measured.html",
        &measured::Page::new(&Runs::parse(runs.to_string().as_bytes()).unwrap()),
    )
    .unwrap();
    for tag in [
        "<img", "<i>", "<b>", "<u>", "<s>", "<q>", "<em>", "<script", "http://", "https://",
    ] {
        assert!(!html.contains(tag), "{tag}");
    }
    assert!(html.contains("&lt;em&gt;") && html.contains("&lt;u&gt;"));
}

#[test]
fn a_run_whose_minimum_is_not_known_is_a_page_without_it() {
    let text = r#"{"name": "n", "runs": [{"epochs": [{"total_s": 2, "stall_s": 1}],
        "stats": {"policy": "foresee", "source_bytes": 7, "source_minimum_bytes": null}}]}"#;
    let html = filled(
        "measured.html",
        &measured::Page::new(&Runs::parse(text.as_bytes()).unwrap()),
    )
    .unwrap();
    assert!(
        html.contains("Bytes read from the source per run\"") && !html.contains("Source minimum"),
        "{html}"
    );
}

#[test]
fn each_host_whose_ranks_share_threads_is_shown_once() {
    let balance = |members: [u32; 2], steps: u64| {
        serde_json::json!({"members": members, "steps": steps, "imbalanced_steps": 0.25, "utilisation": 0.8,
            "late_by": [{}, {"source": 5}], "waited_s": [0.0, 2.0], "steps_s": {"p50": 0.05},
            "steps_histogram": [[0.05, steps / 2], [0.1, steps / 2]],
            "threads_over_time": [[0, [4, 4]], [10, [2, 6]]]})
    };
    let rank = |rank: u32, balance: serde_json::Value| serde_json::json!({"rank": rank, "samples": 1, "stall_s": 0.0, "stats": {"balance": balance}});
    let runs = serde_json::json!({"name": "n", "runs": [{"epochs": [{"total_s": 2, "stall_s": 1}],
        "stats": {"policy": "foresee", "source_bytes": 7},
        "ranks": [rank(0, balance([0, 1], 20)), rank(1, balance([0, 1], 18)),
                  rank(2, balance([2, 3], 20)), rank(3, balance([2, 3], 20))]}]});
    let runs = Runs::parse(runs.to_string().as_bytes()).unwrap();
    let html = filled("measured.html", &measured::Page::new(&runs)).unwrap();
    assert_eq!(html.matches("class=\"staircase\"").count(), 4);
    assert_eq!(html.matches("20 steps were imbalanced").count(), 2);
    assert!(html.contains("foresee, host 1, rank 3") && !html.contains("18 steps"));
    assert!(html.contains("80.0\u{a0}% of their time"));
}

#[test]
fn a_run_of_nothing_is_a_page_too() {
    let text = r#"{"name": "n", "runs": [{"epochs": [{"total_s": 0, "stall_s": 0}],
        "stats": {"policy": "naive", "source_bytes": 0, "source_minimum_bytes": 0}}]}"#;
    let html = filled(
        "measured.html",
        &measured::Page::new(&Runs::parse(text.as_bytes()).unwrap()),
    )
    .unwrap();
    assert!(
        html.contains("1 real run, 1 epoch<")
            && !html.contains("id=\"stall\"")
            && !html.contains("id=\"balance\""),
        "{html}"
    );
}
