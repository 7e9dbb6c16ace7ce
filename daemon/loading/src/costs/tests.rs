//! Reading or measuring: which of them happens, and what it leaves behind.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use faser_engine::cost::{AttentionCost, PassCost, ROW_GRID};

use super::*;

/// A place for a folder that is not there yet; removed when dropped.
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    pub(super) fn new(test: &str) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("faser-costs-{}-{count}-{test}", std::process::id());
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// Tables whose verify pass of one row takes `ns`.
pub(super) fn costs(ns: u64) -> PartitionCosts {
    let cost = |ns: u64| {
        PassCost::new(
            &ROW_GRID.map(|rows| (rows, Duration::from_nanos(ns + 17 * rows as u64))),
            AttentionCost { per_kv_fs: ns, per_row_fs: ns / 3 },
        )
    };
    PartitionCosts { draft: cost(ns / 10), verify: cost(ns) }
}

/// A start at `now` that would measure `ns`, and does not look before.
fn start(folder: &Path, again: bool, now: SystemTime, ns: u64) -> CostTables {
    looking_start(folder, again, now, None, ns)
}

/// A start at which passes of one row take as those of these tables, as far as it looks.
fn looking_start(
    folder: &Path,
    again: bool,
    now: SystemTime,
    seen: Option<PartitionCosts>,
    ns: u64,
) -> CostTables {
    let key = json!({"device": "a cpu"});
    let cache = Cache { folder, key: &key, partitions: 1, again };
    let (partitions, source) = cache.read_or_measure(now, || seen, || Ok(vec![costs(ns)])).unwrap();
    CostTables { partitions, source, learned: None }
}

#[test]
fn a_second_start_reads_what_the_first_measured_unless_told_to_measure() {
    let (folder, now) = (Folder::new("starts"), SystemTime::now());
    let first = start(&folder.0.join("deep/er"), false, now, 1000);
    assert_eq!(first.partitions, [costs(1000)]);
    let CostSource::Measured(Some(file)) = first.source else { panic!("{:?}", first.source) };
    let later = now + Duration::from_secs(7200);
    let second = start(&folder.0.join("deep/er"), false, later, 2000);
    assert_eq!(second.partitions, [costs(1000)]);
    let CostSource::Read { file: read, age } = second.source else { panic!("{:?}", second.source) };
    assert_eq!(read, file);
    // Kept to the second.
    assert!((7200..=7201).contains(&age.as_secs()), "{age:?}");
    let third = start(&folder.0.join("deep/er"), true, later, 3000);
    assert_eq!((third.partitions, third.source), (vec![costs(3000)], CostSource::Measured(Some(file))));
    let before = now - Duration::from_secs(3600);
    let fourth = start(&folder.0.join("deep/er"), false, before, 4000);
    assert_eq!(fourth.partitions, [costs(3000)]);
    assert!(matches!(fourth.source, CostSource::Read { age: Duration::ZERO, .. }), "{:?}", fourth.source);
}

#[test]
fn tables_of_a_busy_machine_are_measured_anew_when_it_is_not() {
    let (folder, now) = (Folder::new("busy"), SystemTime::now());
    let hours = |hours: u32| now + hours * Duration::from_secs(3600);
    let start = |at, seen, ns| looking_start(&folder.0, false, at, seen, ns).partitions;
    assert_eq!(start(now, None, 10_000), [costs(10_000)]);
    assert_eq!(start(now, Some(costs(1)), 1), [costs(10_000)], "just measured");
    // As fast, a little faster, or slower: the machine is busy now.
    for seen in [10_000, 8_000, 50_000] {
        assert_eq!(start(hours(1), Some(costs(seen)), 20_000), [costs(10_000)]);
    }
    // One lane is enough.
    let faster_draft = PartitionCosts { draft: costs(6_000).draft, ..costs(10_000) };
    assert_eq!(start(hours(2), Some(faster_draft), 6_000), [costs(6_000)]);
    assert_eq!(start(hours(9), Some(costs(6_000)), 1), [costs(6_000)]);
}

#[test]
fn a_damaged_file_is_measured_anew_and_replaced() {
    let (folder, now) = (Folder::new("replaced"), SystemTime::now());
    let CostSource::Measured(Some(file)) = start(&folder.0, false, now, 1000).source else {
        panic!("nothing was kept");
    };
    fs::write(&file, "{\"format\": 1, ").unwrap();
    let again = start(&folder.0, false, now, 2000);
    assert_eq!((again.partitions, again.source), (vec![costs(2000)], CostSource::Measured(Some(file))));
    let read = start(&folder.0, false, now, 3000);
    assert_eq!(read.partitions, [costs(2000)]);
}

#[test]
fn a_folder_that_cannot_be_written_is_no_error() {
    let folder = Folder::new("file");
    // A file where a folder on the way should be: nobody can write below it, not even root.
    fs::write(&folder.0, "").unwrap();
    for _ in 0..2 {
        let tables = start(&folder.0.join("costs"), false, SystemTime::now(), 1000);
        assert_eq!(tables.partitions, [costs(1000)]);
        assert_eq!(tables.source, CostSource::Measured(None));
    }
    fs::remove_file(&folder.0).unwrap();
}

#[test]
fn what_cannot_be_measured_is_an_error_and_nothing_is_kept() {
    let (folder, key) = (Folder::new("failed"), json!(1));
    let cache = Cache { folder: &folder.0, key: &key, partitions: 1, again: false };
    let failed =
        cache.read_or_measure(SystemTime::now(), || None, || Err(LoadError::PlanUnfit("test".to_owned())));
    assert!(failed.is_err());
    assert!(!folder.0.exists());
}

#[test]
fn ages_are_spoken() {
    for (seconds, text) in [
        (0, "less than a minute"),
        (59, "less than a minute"),
        (60, "1 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (172_799, "47 h"),
        (172_800, "2 days"),
        (864_000, "10 days"),
    ] {
        assert_eq!(spoken(Duration::from_secs(seconds)), text);
    }
    let read = CostSource::Read { file: "/c/x.json".into(), age: Duration::from_secs(3600) };
    assert_eq!(read.to_string(), "measured 60 min ago, read from /c/x.json");
}

fn of(variables: &[(&str, &str)]) -> Option<PathBuf> {
    standard_of(|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into()))
}

#[test]
fn the_first_variable_that_names_a_folder_decides() {
    let home = ("HOME", "/home/me");
    let xdg = ("XDG_CACHE_HOME", "/var/me");
    for (variables, folder) in [
        (&[home, xdg, ("CACHE_DIRECTORY", "/var/cache/faser:/var/cache/other")][..], "/var/cache/faser"),
        (&[home, xdg][..], "/var/me/faser"),
        (&[home, xdg, ("CACHE_DIRECTORY", "")][..], "/var/me/faser"),
        (&[home, ("XDG_CACHE_HOME", "relative")][..], "/home/me/.cache/faser"),
        (&[home, ("XDG_CACHE_HOME", "")][..], "/home/me/.cache/faser"),
    ] {
        assert_eq!(of(variables).as_deref(), Some(Path::new(folder)), "{variables:?}");
    }
    assert_eq!(of(&[]), None);
    assert_eq!(of(&[("HOME", "")]), None);
}
