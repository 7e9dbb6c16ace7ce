//! Reading `/proc` and the cgroup files; parsing is apart from reading so that it can be tested.

use crate::TopologyError;
use std::{fs, path::PathBuf};

const STATUS: &str = "/proc/self/status";
const MEMINFO: &str = "/proc/meminfo";

/// Cores this process may run on, ascending.
pub(crate) fn allowed_cores() -> Result<Vec<usize>, TopologyError> {
    let field = "Cpus_allowed_list";
    line(&read(STATUS)?, field).and_then(parse_core_list).ok_or(TopologyError::Parse { path: STATUS, field })
}

/// Memory that can be had without swapping.
pub(crate) fn available_memory_bytes() -> Result<u64, TopologyError> {
    let field = "MemAvailable";
    line(&read(MEMINFO)?, field).and_then(parse_kib).ok_or(TopologyError::Parse { path: MEMINFO, field })
}

/// The processor's own name; "cpu" where `/proc/cpuinfo` has none (some ARM kernels).
pub(crate) fn cpu_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    line(&text, "model name").map_or_else(|| "cpu".to_owned(), str::to_owned)
}

/// The smallest memory limit of this process's cgroup and those above it, if one is set.
pub(crate) fn cgroup_memory_bytes() -> Option<u64> {
    let v2 = cgroup_files("", "memory.max");
    let v1 = cgroup_files("memory", "memory.limit_in_bytes");
    v2.chain(v1).filter_map(|text| text.trim().parse().ok()).min()
}

/// The CPU quota of this process's cgroup in whole CPUs (rounded up), if one is set.
pub(crate) fn cgroup_cpus() -> Option<usize> {
    let v2 = cgroup_files("", "cpu.max").filter_map(|text| parse_quota(&text)).min();
    let v1 = cgroup_files("cpu", "cpu.cfs_quota_us").zip(cgroup_files("cpu", "cpu.cfs_period_us"));
    v2.or_else(|| {
        v1.filter_map(|(quota, period)| parse_quota(&format!("{} {}", quota.trim(), period.trim()))).min()
    })
}

/// Contents of `name` in this process's cgroup of `controller` ("" is v2) and every cgroup above it.
/// Inside a container the path named in `/proc` may not exist, but the root's files hold the limit.
fn cgroup_files(controller: &str, name: &str) -> impl Iterator<Item = String> {
    let membership = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = cgroup_path(&membership, controller).unwrap_or_default();
    let mount = PathBuf::from("/sys/fs/cgroup").join(controller);
    let own = mount.join(path.trim_start_matches('/'));
    let dirs: Vec<PathBuf> =
        own.ancestors().take_while(|dir| dir.starts_with(&mount)).map(PathBuf::from).collect();
    let name = name.to_owned();
    dirs.into_iter().filter_map(move |dir| fs::read_to_string(dir.join(&name)).ok())
}

fn read(path: &'static str) -> Result<String, TopologyError> {
    fs::read_to_string(path).map_err(|source| TopologyError::Read { path, source })
}

/// What follows `field:` on its line.
fn line<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.trim_start().strip_prefix(':')?.trim()))
}

/// `0-2,8` to `[0, 1, 2, 8]`.
pub(crate) fn parse_core_list(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.trim().parse::<usize>().ok()?..=last.trim().parse().ok()?);
    }
    cores.sort_unstable();
    cores.dedup();
    (!cores.is_empty()).then_some(cores)
}

/// `1024 kB` to bytes.
fn parse_kib(text: &str) -> Option<u64> {
    text.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `QUOTA PERIOD` in microseconds to whole CPUs; `max` or a negative quota is no limit.
fn parse_quota(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<usize>().ok()?, period.trim().parse::<usize>().ok()?);
    (period > 0).then(|| quota.div_ceil(period))
}

/// The path of the cgroup in a `/proc/self/cgroup`, whose lines are `id:controllers:path`.
fn cgroup_path(membership: &str, controller: &str) -> Option<String> {
    membership.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == controller).then(|| path.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn core_lists() {
        assert_eq!(parse_core_list("0-2,8"), Some(vec![0, 1, 2, 8]));
        assert_eq!(parse_core_list("5"), Some(vec![5]));
        assert_eq!(parse_core_list("8,0-1,1"), Some(vec![0, 1, 8]));
        assert_eq!(parse_core_list(""), None);
        assert_eq!(parse_core_list("a-b"), None);
    }

    #[test]
    fn lines_sizes_and_quotas() {
        assert_eq!(
            line("MemTotal: 5 kB\nMemAvailable:   12 kB\n", "MemAvailable").and_then(parse_kib),
            Some(12 * 1024)
        );
        assert_eq!(line("model name\t: EPYC\n", "model name"), Some("EPYC"));
        assert_eq!(parse_kib("12 MB"), None);
        assert_eq!(parse_quota("max 100000"), None);
        assert_eq!(parse_quota("-1 100000"), None);
        assert_eq!(parse_quota("150000 100000\n"), Some(2));
        assert_eq!(parse_quota("1 0"), None);
    }

    #[test]
    fn cgroup_paths_of_both_versions() {
        assert_eq!(cgroup_path("0::/user.slice\n", "").as_deref(), Some("/user.slice"));
        let v1 = "4:memory:/a/b\n2:cpu,cpuacct:/c\n";
        assert_eq!(cgroup_path(v1, "memory").as_deref(), Some("/a/b"));
        assert_eq!(cgroup_path(v1, "cpu").as_deref(), Some("/c"));
        assert_eq!(cgroup_path(v1, "io"), None);
    }
}
