//! Control groups, by the kernel's texts: which folders bound a process, in both versions, and what a quota is worth.
//!
//! A process is in one group of each hierarchy (`/proc/self/cgroup`). Where a hierarchy is to be seen is a mount
//! (`/proc/self/mountinfo`), which in a container may begin far below its root. What is above that cannot be seen, and
//! need not be: the container's own limit is its first folder.

use std::path::{Component, Path, PathBuf};

/// The folders of a controller for a process, its own group first and then those above it, as far as they can be seen.
/// Version 1 has a hierarchy for each controller; version 2 has one for all, and both may be there.
pub(super) fn folders(groups: &str, mounts: &str, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for mount in mounts.lines().filter_map(Mount::parse) {
        let is_first =
            mount.kind == "cgroup" && mount.options.split(',').any(|it| it == controller);
        let group = match mount.kind {
            "cgroup" if is_first => group_of(groups, controller),
            "cgroup2" => group_of(groups, ""),
            _ => None,
        };
        if let Some(group) = group {
            folders.extend(mount.folders(group));
        }
    }
    folders
}

/// How many cores a quota is worth: `quota period`, both in microseconds; none where there is no limit.
pub(super) fn quota(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    // Version 1 has -1 for no limit, version 2 has "max".
    let quota: f64 = quota.parse().ok().filter(|quota| *quota > 0.0)?;
    let period: f64 = period.parse().ok().filter(|period| *period > 0.0)?;
    Some(quota / period)
}

/// A process's group for a controller; without one, of version 2.
fn group_of<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        let group = fields.next()?;
        let is_it = if controller.is_empty() {
            controllers.is_empty()
        } else {
            controllers.split(',').any(|it| it == controller)
        };
        is_it.then_some(group)
    })
}

/// One line of `/proc/self/mountinfo`.
struct Mount<'a> {
    /// Which folder of the hierarchy is to be seen.
    root: &'a str,
    /// And where.
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        // The number of fields before the hyphen varies.
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let mut what = what.split(' ');
        let root = place.next()?;
        let point = place.next()?;
        let kind = what.next()?;
        let _device = what.next()?;
        Some(Self {
            root,
            point,
            kind,
            options: what.next().unwrap_or(""),
        })
    }

    /// A group's folder and those above it, up to where the mount begins.
    fn folders(&self, group: &str) -> Vec<PathBuf> {
        let point = Path::new(self.point);
        // A group of another container's, or one above this one, is not to be seen here: what is, bounds it too.
        let below = Path::new(group).strip_prefix(self.root).ok();
        let below = below.filter(|below| {
            below
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
        });
        let own = match below {
            Some(below) if below != Path::new("") => point.join(below),
            _ => point.to_path_buf(),
        };
        own.ancestors()
            .take_while(|folder| folder.starts_with(point))
            .map(Path::to_path_buf)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(groups: &str, mounts: &str, controller: &str) -> Vec<String> {
        folders(groups, mounts, controller)
            .into_iter()
            .map(|folder| folder.display().to_string())
            .collect()
    }

    /// As systemd mounts version 2.
    const UNIFIED: &str = "24 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n\
         25 23 0:23 / /proc rw - proc proc rw\n";

    #[test]
    fn a_step_of_slurm_is_bounded_by_all_groups_above_it() {
        let groups = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n";
        assert_eq!(
            shown(groups, UNIFIED, "memory"),
            [
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user/task_0",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0/user",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7/step_0",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7",
                "/sys/fs/cgroup/system.slice/slurmstepd.scope",
                "/sys/fs/cgroup/system.slice",
                "/sys/fs/cgroup",
            ]
        );
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        assert_eq!(shown("0::/\n", UNIFIED, "memory"), ["/sys/fs/cgroup"]);
        // With the host's groups in sight of the text, but not of the mount.
        assert_eq!(
            shown("0::/../other\n", UNIFIED, "memory"),
            ["/sys/fs/cgroup"]
        );
    }

    /// Version 1 as in a container of an older docker: mounts begin at its own group.
    const FIRST: &str = "33 31 0:30 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n\
         35 31 0:32 /docker/ab /sys/fs/cgroup/memory ro master:9 - cgroup cgroup rw,memory\n\
         36 31 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    #[test]
    fn version_one_has_a_hierarchy_for_each_controller() {
        let groups = "4:memory:/docker/ab/job\n3:cpuset:/\n1:cpu,cpuacct:/docker/ab\n0::/x\n";
        assert_eq!(
            shown(groups, FIRST, "memory"),
            [
                "/sys/fs/cgroup/memory/job",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified/x",
                "/sys/fs/cgroup/unified",
            ]
        );
        assert_eq!(shown(groups, FIRST, "cpu")[0], "/sys/fs/cgroup/cpu,cpuacct");
        let elsewhere = "4:memory:/slurm/job_7\n";
        assert_eq!(shown(elsewhere, FIRST, "memory"), ["/sys/fs/cgroup/memory"]);
    }

    #[test]
    fn texts_that_are_not_understood_bound_nothing() {
        assert!(shown("", UNIFIED, "memory").is_empty());
        assert!(shown("nonsense", "nonsense", "memory").is_empty());
        assert!(shown("0::/a", "1 2 3 - cgroup2", "memory").is_empty());
    }

    #[test]
    fn a_quota_is_worth_its_part_of_the_period() {
        assert_eq!(quota("max 100000\n"), None);
        assert_eq!(quota("-1 100000"), None);
        assert_eq!(quota("250000 100000\n"), Some(2.5));
        assert_eq!(quota("100000"), None);
        assert_eq!(quota("100000 0"), None);
    }
}
