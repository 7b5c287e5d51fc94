//! A plan of threads: from which step on each rank of a host has how many. It is made by a run, simulated or real, and done
//! again by another (the paper's planner and runtime). As text, a line for each change:
//!
//! ```text
//! step 0: 4 4 4 4, decoding 2
//! step 16: 2 8 3 3, decoding 2
//! ```

use std::fmt;
use std::str::FromStr;

use super::{Allotted, TextError};

/// Threads over the steps of a job, counted from its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadPlan {
    /// By step, rising.
    changes: Vec<(u64, Allotted)>,
}

impl ThreadPlan {
    /// From this step on it is this. A step before the last that was noted is taken for the last.
    pub fn note(&mut self, step: u64, allotted: &Allotted) {
        match self.changes.last_mut() {
            Some((_, last)) if last == allotted => {}
            Some((at, last)) if *at >= step => *last = allotted.clone(),
            _ => self.changes.push((step, allotted.clone())),
        }
    }

    /// What holds at a step; none before the first that was noted.
    pub fn at(&self, step: u64) -> Option<&Allotted> {
        let after = self.changes.partition_point(|(from, _)| *from <= step);
        let (_, allotted) = self.changes.get(after.checked_sub(1)?)?;
        Some(allotted)
    }

    /// The same without what held while some rank was not there: what can be done again, and is read from a text.
    #[must_use]
    pub fn of_all(&self) -> Self {
        let changes = self.changes.iter();
        let of_all = changes.filter(|(_, allotted)| !allotted.loading.contains(&0));
        Self {
            changes: of_all.cloned().collect(),
        }
    }

    /// All changes with their steps.
    pub fn changes(&self) -> &[(u64, Allotted)] {
        &self.changes
    }
}

impl fmt::Display for ThreadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (step, Allotted { loading, decoding }) in &self.changes {
            let by_rank: Vec<String> = loading.iter().map(ToString::to_string).collect();
            writeln!(f, "step {step}: {}, decoding {decoding}", by_rank.join(" "))?;
        }
        Ok(())
    }
}

impl FromStr for ThreadPlan {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let mut changes: Vec<(u64, Allotted)> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let wrong = TextError {
                line: number,
                expected: "`step N: THREADS THREADS ..., decoding THREADS`, steps rising, as many ranks in each line, none without a thread",
            };
            let (step, allotted) = read_change(line).ok_or(wrong)?;
            let follows = changes.last().is_none_or(|(last, before)| {
                *last < step && before.loading.len() == allotted.loading.len()
            });
            if !follows {
                return Err(wrong);
            }
            changes.push((step, allotted));
        }
        Ok(Self { changes })
    }
}

fn read_change(line: &str) -> Option<(u64, Allotted)> {
    let (step, threads) = line.strip_prefix("step ")?.split_once(": ")?;
    let (loading, decoding) = threads.split_once(", decoding ")?;
    let by_rank = loading.split(' ').map(|threads| threads.parse().ok());
    let loading: Option<Vec<u32>> = by_rank.collect();
    let loading = loading.filter(|all| all.iter().all(|threads| *threads > 0))?;
    let decoding = decoding.parse().ok()?;
    Some((step.parse().ok()?, Allotted { loading, decoding }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allotted(loading: &[u32]) -> Allotted {
        Allotted {
            loading: loading.to_vec(),
            decoding: 2,
        }
    }

    #[test]
    fn a_plan_is_what_was_noted_and_reads_back_from_its_text() {
        let mut plan = ThreadPlan::default();
        assert_eq!(plan.at(0), None);
        plan.note(2, &allotted(&[4, 4]));
        plan.note(4, &allotted(&[4, 4]));
        plan.note(8, &allotted(&[6, 2]));
        plan.note(8, &allotted(&[7, 1]));
        assert_eq!(plan.changes().len(), 2);
        let held = [1, 2, 7, 8, 1 << 40].map(|step| plan.at(step).map(|at| at.loading[0]));
        assert_eq!(held, [None, Some(4), Some(4), Some(7), Some(7)]);
        assert_eq!(
            plan.to_string(),
            "step 2: 4 4, decoding 2\nstep 8: 7 1, decoding 2\n"
        );
        assert_eq!(plan.to_string().parse(), Ok(plan));
        assert_eq!("".parse(), Ok(ThreadPlan::default()));
    }

    #[test]
    fn what_held_while_a_rank_was_away_is_not_done_again() {
        let mut plan = ThreadPlan::default();
        plan.note(2, &allotted(&[4, 4]));
        plan.note(4, &allotted(&[8, 0]));
        plan.note(8, &allotted(&[6, 2]));
        let steps = plan
            .of_all()
            .changes()
            .iter()
            .map(|(step, _)| *step)
            .collect::<Vec<_>>();
        assert_eq!(steps, [2, 8]);
        assert_eq!(plan.of_all().to_string().parse(), Ok(plan.of_all()));
    }

    #[test]
    fn a_text_that_is_no_plan_is_refused_by_its_line() {
        let good = "step 2: 4 4, decoding 2\n";
        for bad in [
            "step 2: 4 4, decoding 2",
            "step 3: 4 4 4, decoding 2",
            "step 3: 4 0, decoding 2",
            "step 3: 4 -1, decoding 2",
            "step 3: 4 4",
            "step: 4 4, decoding 2",
        ] {
            let error = format!("{good}{bad}").parse::<ThreadPlan>().unwrap_err();
            assert_eq!(error.line, 2, "{bad}");
        }
    }
}
