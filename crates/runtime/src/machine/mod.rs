//! What this machine has, and how much of it is a rank's: other ranks of the host use the same cores and the same memory.
//!
//! Limits are those of the process's own control group and of all above it (SLURM and containers set them); the smallest
//! counts. Everything is read from the kernel's texts; `cgroup`, `cpus` and `nodes` make sense of them and read nothing.

mod cgroup;
mod cpus;
mod nodes;

use std::path::{Path, PathBuf};

use rustix::thread::{CpuSet, sched_setaffinity};

use self::cpus::CoreShare;
pub(crate) use self::nodes::{Nodes, Place};

/// Cores that a rank may use: its part of those that its threads may run on, and of the processor time that its control
/// group is given.
pub fn cores(ranks_on_host: u32) -> u32 {
    let Some(own) = allowed("/proc/thread-self/status") else {
        return std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    };
    let parent = std::os::unix::process::parent_id();
    let share = CoreShare {
        own,
        launcher: allowed(&format!("/proc/{parent}/status")),
        group: group_cpus(),
        quota: quota_cores(),
        ranks: ranks_on_host,
    };
    share.cores()
}

/// The nodes of this machine, as far as this process may use them; none are told where that is not known.
pub(crate) fn nodes() -> Nodes {
    let folder = Path::new("/sys/devices/system/node");
    let online = text(&folder.join("online")).unwrap_or_default();
    let numbers = cpus::list(&online).unwrap_or_default();
    if numbers.len() < 2 {
        return Nodes::default();
    }
    let list = |node: &u32| text(&folder.join(format!("node{node}/cpulist")));
    let lists: Vec<String> = numbers.iter().filter_map(list).collect();
    let status = text(Path::new("/proc/thread-self/status")).unwrap_or_default();
    let allowed = cpus::allowed_list(&status).unwrap_or_default();
    Nodes::of(lists.iter().map(String::as_str), allowed)
}

/// The calling thread stays on these processors, where the system has nothing against it.
pub(crate) fn stay_on(cpus: &[u32]) {
    let mut set = CpuSet::new();
    for cpu in cpus {
        let cpu = *cpu as usize;
        if cpu < CpuSet::MAX_CPU {
            set.set(cpu);
        }
    }
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!("a loader thread is not bound to its node: {error}");
    }
}

/// Memory that all ranks of the host together may use: the machine's, or less where a control group bounds it. `None` where
/// neither is told.
pub fn memory_bytes() -> Option<u64> {
    let limits = folders("memory").into_iter().flat_map(|folder| {
        let limits = ["memory.max", "memory.limit_in_bytes"].map(|file| text(&folder.join(file)));
        limits.into_iter().flatten()
    });
    limits
        .filter_map(|limit| limit.trim().parse().ok())
        .chain(machine_bytes())
        .min()
}

/// The folders of this process's control group for a controller, its own first, then those above it.
fn folders(controller: &str) -> Vec<PathBuf> {
    let groups = text(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mounts = text(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    cgroup::folders(&groups, &mounts, controller)
}

/// How many processors a process may run on.
fn allowed(status: &str) -> Option<u32> {
    cpus::allowed(&text(Path::new(status))?)
}

/// How many processors the control group may run on; the nearest group that says so.
fn group_cpus() -> Option<u32> {
    folders("cpuset").iter().find_map(|folder| {
        let names = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
        names
            .iter()
            .find_map(|name| cpus::listed(&text(&folder.join(name))?))
    })
}

/// As many cores as the processor time of the control group is worth.
fn quota_cores() -> Option<f64> {
    let quotas = folders("cpu").into_iter().filter_map(|folder| {
        let unified = text(&folder.join("cpu.max")).and_then(|text| cgroup::quota(&text));
        unified.or_else(|| {
            let quota = text(&folder.join("cpu.cfs_quota_us"))?;
            let period = text(&folder.join("cpu.cfs_period_us"))?;
            cgroup::quota(&format!("{} {}", quota.trim(), period.trim()))
        })
    });
    quotas.reduce(f64::min)
}

fn text(file: &Path) -> Option<String> {
    std::fs::read_to_string(file).ok()
}

fn machine_bytes() -> Option<u64> {
    let text = text(Path::new("/proc/meminfo"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_rank_has_what_its_threads_may_run_on() {
        let all = std::thread::available_parallelism().unwrap().get() as u32;
        assert_eq!(cores(1), all);
        assert_eq!(cores(all * 2), 1, "every rank has a core");
    }

    #[test]
    fn a_thread_stays_where_it_is_told() {
        let status = || text(Path::new("/proc/thread-self/status")).unwrap();
        let allowed = cpus::list(cpus::allowed_list(&status()).unwrap()).unwrap();
        let last = *allowed.last().unwrap();
        let stays = std::thread::spawn(move || {
            stay_on(&[last]);
            cpus::allowed_list(&status()).map(str::to_owned)
        });
        assert_eq!(stays.join().unwrap(), Some(last.to_string()));
    }

    #[test]
    fn memory_is_at_most_the_machines() {
        let there = memory_bytes().unwrap();
        assert!(there > 0 && there <= machine_bytes().unwrap());
    }
}
