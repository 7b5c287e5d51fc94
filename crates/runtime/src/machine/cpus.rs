//! How many cores are a rank's. Launchers either bind each rank to cores of its own, or leave all ranks of a host on the
//! same ones; a rank sees only what it may run on itself. So that is compared with what it was taken from: what the
//! launcher, its parent, may run on, or its control group. A quarter of those with four ranks is its own; all of them, it
//! shares with the others.

/// More processors than any machine has: such a text is none of the kernel's.
const CPU_MAX: u32 = 1 << 16;

/// What a rank may run on, and what it shares that with.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreShare {
    /// Processors that its threads may run on.
    pub(super) own: u32,
    /// Those of the process that started it.
    pub(super) launcher: Option<u32>,
    /// Those of its control group.
    pub(super) group: Option<u32>,
    /// As many as the processor time of its control group is worth, which ranks share whatever they are bound to.
    pub(super) quota: Option<f64>,
    /// Ranks on this host.
    pub(super) ranks: u32,
}

impl CoreShare {
    /// How many cores are its own; one at least.
    pub(super) fn cores(self) -> u32 {
        let of_mask = self.own / self.sharers();
        let of_quota = self
            .quota
            .map(|quota| (quota / f64::from(self.ranks.max(1))) as u32);
        of_quota.map_or(of_mask, |quota| quota.min(of_mask)).max(1)
    }

    /// How many ranks run on what this one may run on, itself included.
    fn sharers(self) -> u32 {
        let ranks = self.ranks.max(1);
        let all = [self.launcher, self.group].into_iter().flatten().min();
        let all = all.unwrap_or(self.own).max(self.own).max(1);
        let sharers = (u64::from(ranks) * u64::from(self.own)).div_ceil(u64::from(all));
        (sharers as u32).clamp(1, ranks)
    }
}

/// How many processors a process may run on, by its `/proc/PID/status`.
pub(super) fn allowed(status: &str) -> Option<u32> {
    listed(allowed_list(status)?)
}

/// The list of them.
pub(super) fn allowed_list(status: &str) -> Option<&str> {
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim())
}

/// How many processors a list such as `0-3,8` has.
pub(super) fn listed(text: &str) -> Option<u32> {
    list(text).map(|cpus| cpus.len() as u32)
}

/// Each of them.
pub(super) fn list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let first: u32 = first.parse().ok()?;
        let last: u32 = last.parse().ok()?;
        if first > last || last > CPU_MAX {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of four ranks has where nothing else bounds it.
    fn of_four(own: u32, launcher: u32, group: u32) -> u32 {
        let share = CoreShare {
            own,
            launcher: Some(launcher),
            group: Some(group),
            quota: None,
            ranks: 4,
        };
        share.cores()
    }

    #[test]
    fn ranks_that_nobody_bound_share_all_cores() {
        assert_eq!(of_four(64, 64, 64), 16);
        assert_eq!(of_four(2, 2, 2), 1, "and have one at least");
    }

    #[test]
    fn a_rank_that_is_bound_has_its_cores_alone() {
        assert_eq!(of_four(16, 64, 64), 16);
        assert_eq!(of_four(8, 64, 64), 8);
    }

    #[test]
    fn two_ranks_on_a_socket_share_it() {
        assert_eq!(of_four(32, 64, 64), 16);
    }

    #[test]
    fn what_bounds_all_ranks_is_not_taken_for_a_binding_of_each() {
        assert_eq!(
            of_four(32, 128, 32),
            8,
            "a job of SLURM on a part of its host"
        );
        assert_eq!(of_four(32, 32, 128), 8, "a launcher that was bound itself");
    }

    #[test]
    fn a_quota_is_for_all_ranks() {
        let share = CoreShare {
            own: 64,
            launcher: None,
            group: None,
            quota: Some(10.0),
            ranks: 4,
        };
        assert_eq!(share.cores(), 2);
        assert_eq!(CoreShare { ranks: 1, ..share }.cores(), 10);
        assert_eq!(
            CoreShare {
                quota: Some(0.5),
                ..share
            }
            .cores(),
            1
        );
        assert_eq!(CoreShare { own: 4, ..share }.cores(), 1);
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(listed("0-3,8\n"), Some(5));
        assert_eq!(listed("7"), Some(1));
        assert_eq!(listed(""), None);
        assert_eq!(listed("3-1"), None);
        assert_eq!(listed("0-4294967295"), None);
        assert_eq!(list("0-2,8"), Some(vec![0, 1, 2, 8]));
        let status =
            "Name:\tpython\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\nMems_allowed:\t1\n";
        assert_eq!(allowed(status), Some(8));
        assert_eq!(allowed("Name:\tpython\n"), None);
    }
}
