//! The papers' figures of a job: how often a rank uses samples, and how far apart uses are on a host.

use foresee_core::foresight::{By, Foresight};
use foresee_core::ids::{Host, Rank};
use foresee_sim::job::Job;

use crate::report::{Bars, count};

/// Bars of the reuse-distance histogram: fine enough to see the shape, wide enough to label.
const REUSE_BINS: usize = 20;

/// Bars of the frequency histogram; beyond that neighbours are joined.
const FREQUENCY_BARS: usize = 40;

/// Access frequency of rank 0 and reuse distance on host 0.
pub(crate) fn of(job: &Job) -> (Bars, Bars) {
    let brief = &job.brief;
    let foresight = Foresight::new(
        brief.orders.clone(),
        brief.layout.clone(),
        brief.hosts.clone(),
    );
    (frequency(&foresight, job), reuse(&foresight))
}

fn frequency(foresight: &Foresight, job: &Job) -> Bars {
    let counts = foresight.frequency_histogram(By::Rank(Rank(0)));
    let highest = counts.last().map_or(0, |&(uses, _)| uses) as usize;
    let width = (highest + 1).div_ceil(FREQUENCY_BARS);
    let mut bars: Vec<(String, f64)> = (0..=highest / width)
        .map(|bar| {
            let first = bar * width;
            let last = bar * width + width - 1;
            (
                if width == 1 {
                    first.to_string()
                } else {
                    format!("{first}-{last}")
                },
                0.0,
            )
        })
        .collect();
    for (uses, samples) in counts {
        bars[uses as usize / width].1 += samples as f64;
    }
    let epochs = job.brief.orders.epochs();
    let ranks = job.brief.hosts.ranks();
    Bars {
        title: "Access frequency".to_owned(),
        x_title: "uses by rank 0 over the job".to_owned(),
        y_title: "samples".to_owned(),
        bars,
        note: format!(
            "{epochs} epochs over {ranks} ranks: {:.1} uses on average.",
            f64::from(epochs) / f64::from(ranks)
        ),
    }
}

fn reuse(foresight: &Foresight) -> Bars {
    let histogram = foresight.reuse_histogram(Host(0), REUSE_BINS);
    let bar = |(bin, uses): (usize, &u64)| (count(bin as u64 * histogram.bin_steps), *uses as f64);
    Bars {
        title: "Reuse distance".to_owned(),
        x_title: "steps to the next use on host 0, from".to_owned(),
        y_title: "uses".to_owned(),
        bars: histogram.counts.iter().enumerate().map(bar).collect(),
        note: format!(
            "A bar is {} steps wide. {} uses are the last on this host.",
            count(histogram.bin_steps),
            count(histogram.never)
        ),
    }
}
