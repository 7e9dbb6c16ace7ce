//! One file of cached cost tables: JSON with its key in clear, believed only when everything in it fits.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use faser_engine::cost::{AttentionCost, PartitionCosts, PassCost};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_file::{Unusable, path_of, read_json, read_of_any, write_json};

/// Number of the format; another number, another meaning of the fields, or another way to measure them.
const FORMAT: u64 = 8;
/// Row counts of a table, and the largest of them.
const MOST_POINTS: usize = 4096;
const MOST_ROWS: usize = 1 << 20;
/// Tables and layers of a simulated device, at most.
const MOST_TABLES: usize = 64;
const MOST_LAYERS: usize = 4096;
const PREFIX: &str = "cost-";
/// No pass takes longer, and no position costs attention more.
const LONGEST_PASS: Duration = Duration::from_secs(30 * 86_400);
const MOST_PER_POSITION_FS: u64 = 1_000_000_000_000_000;

/// What was read.
#[derive(Debug, PartialEq)]
pub(super) struct CachedCosts {
    pub(super) partitions: Vec<PartitionCosts>,
    pub(super) measured: SystemTime,
}

/// What an earlier start has measured, on whatever machine and models.
#[derive(Debug)]
pub struct EarlierCosts {
    /// Of each way to share the device between the lanes, the whole device first.
    pub partitions: Vec<PartitionCosts>,
    /// Rows that a pass had at most.
    pub max_rows: usize,
    /// Layers of the target.
    pub target_layers: usize,
    /// It was a debug build, which is slower.
    pub debug: bool,
}

#[derive(Deserialize, Serialize)]
struct Table {
    draft: LaneTable,
    verify: LaneTable,
}

/// Whole numbers, as they were measured: they come back exactly, and can be neither negative nor infinite.
#[derive(Deserialize, Serialize)]
struct LaneTable {
    /// Rows of passes without context, ascending, and nanoseconds that each took.
    passes: Vec<(usize, u64)>,
    /// What attention costs per position whose KV is read, and per row and position.
    per_kv_fs: u64,
    per_row_fs: u64,
}

/// The file of one key in a folder.
pub(super) struct CostFile<'a> {
    key: &'a Value,
    pub(super) path: PathBuf,
}

impl<'a> CostFile<'a> {
    pub(super) fn new(folder: &Path, key: &'a Value) -> CostFile<'a> {
        CostFile { key, path: path_of(folder, PREFIX, key) }
    }

    /// The tables, if the file is there; `partitions` is how many there must be.
    ///
    /// # Errors
    /// The file is there, but must not be used.
    pub(super) fn read(&self, partitions: usize) -> Result<Option<CachedCosts>, Unusable> {
        let Some(value) = read_json(&self.path, FORMAT, self.key)? else { return Ok(None) };
        let cached = CachedCosts::of(&value)?;
        let found = cached.partitions.len();
        if found != partitions {
            return Err(Unusable::Partitions { found, wanted: partitions });
        }
        Ok(Some(cached))
    }

    /// Keeps the tables: whoever reads at any time sees the whole file or the one before.
    ///
    /// # Errors
    /// The folder or the file cannot be written; nothing is left behind then.
    pub(super) fn write(&self, cached: &CachedCosts) -> io::Result<()> {
        let measured = cached.measured.duration_since(UNIX_EPOCH).unwrap_or_default();
        let lane = |cost: &PassCost| LaneTable {
            passes: cost.points().map(|(rows, time)| (rows, nanos(time))).collect(),
            per_kv_fs: cost.attention().per_kv_fs,
            per_row_fs: cost.attention().per_row_fs,
        };
        let table = |costs: &PartitionCosts| Table { draft: lane(&costs.draft), verify: lane(&costs.verify) };
        let content = serde_json::json!({
            "measured_unix_s": measured.as_secs(),
            "tables": cached.partitions.iter().map(table).collect::<Vec<_>>(),
        });
        write_json(&self.path, PREFIX, FORMAT, self.key, content)
    }
}

/// What a file says, whatever machine and models it was measured with; none if it is not there.
///
/// # Errors
/// The file is there, but is not such a file, or was measured without a draft.
pub(super) fn earlier(path: &Path) -> Result<Option<EarlierCosts>, Unusable> {
    let Some(value) = read_of_any(path, FORMAT)? else { return Ok(None) };
    let partitions = CachedCosts::of(&value)?.partitions;
    if !(1..=MOST_TABLES).contains(&partitions.len()) {
        return Err(Unusable::Tables { found: partitions.len(), most: MOST_TABLES });
    }
    let nothing = |costs: &PartitionCosts| costs.draft == PassCost::nothing();
    if partitions.iter().any(nothing) {
        return Err(Unusable::NoDraft);
    }
    let key = &value["key"];
    Ok(Some(EarlierCosts {
        partitions,
        max_rows: usize::deserialize(&key["max_rows"])?,
        target_layers: usize::deserialize(&key["target"]["layers"])?.clamp(1, MOST_LAYERS),
        debug: key["build"] == "debug",
    }))
}

impl CachedCosts {
    fn of(value: &Value) -> Result<CachedCosts, Unusable> {
        let measured_s = u64::deserialize(&value["measured_unix_s"])?;
        let tables: Vec<Table> = Vec::deserialize(&value["tables"])?;
        let costs = tables.iter().enumerate().map(|(table, Table { draft, verify })| {
            let believed =
                |lane: &LaneTable| lane.cost().map_err(|problem| Unusable::Implausible { table, problem });
            Ok(PartitionCosts { draft: believed(draft)?, verify: believed(verify)? })
        });
        Ok(CachedCosts {
            partitions: costs.collect::<Result<_, Unusable>>()?,
            measured: UNIX_EPOCH.checked_add(Duration::from_secs(measured_s)).unwrap_or(UNIX_EPOCH),
        })
    }
}

impl LaneTable {
    fn cost(&self) -> Result<PassCost, &'static str> {
        let LaneTable { per_kv_fs, per_row_fs, .. } = *self;
        let passes = &self.passes;
        if !(2..=MOST_POINTS).contains(&passes.len()) || passes.iter().any(|pass| pass.0 > MOST_ROWS) {
            return Err("too few row counts, too many, or too large ones");
        }
        if passes[0].0 != 1 || !passes.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("rows that do not ascend from 1");
        }
        if passes[0].1 == 0 {
            return Err("a pass that takes no time");
        }
        if !passes.is_sorted_by_key(|pass| pass.1) {
            return Err("a pass of more rows that takes less time");
        }
        if passes.iter().any(|pass| Duration::from_nanos(pass.1) > LONGEST_PASS)
            || per_kv_fs.max(per_row_fs) > MOST_PER_POSITION_FS
        {
            return Err("times longer than any");
        }
        let attention = AttentionCost { per_kv_fs, per_row_fs };
        let profiled: Vec<_> = passes.iter().map(|&(rows, ns)| (rows, Duration::from_nanos(ns))).collect();
        Ok(PassCost::new(&profiled, attention))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use serde_json::json;

    use super::super::json_file::{MOST_BYTES, MOST_FILES};
    use super::super::tests::{Folder, costs};
    use super::*;

    fn cached() -> CachedCosts {
        CachedCosts {
            partitions: vec![costs(1_000_003), costs(3_141_592_653)],
            measured: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        }
    }

    fn key() -> Value {
        json!({"models": {"hidden": 64, "dtype": "bf16"}, "cores": [0, 1]})
    }

    /// A cached file, its value changed by `change`, and why it is refused.
    fn refused(change: impl FnOnce(&mut Value)) -> String {
        let (folder, key) = (Folder::new("refused"), key());
        let file = CostFile::new(&folder.0, &key);
        file.write(&cached()).unwrap();
        let mut value = serde_json::from_str(&fs::read_to_string(&file.path).unwrap()).unwrap();
        change(&mut value);
        fs::write(&file.path, value.to_string()).unwrap();
        file.read(2).unwrap_err().to_string()
    }

    #[test]
    fn tables_come_back_exactly_and_nothing_is_left_beside_them() {
        let (folder, key) = (Folder::new("round-trip"), key());
        let file = CostFile::new(&folder.0, &key);
        assert_eq!(file.read(2).unwrap(), None);
        file.write(&cached()).unwrap();
        file.write(&cached()).unwrap();
        assert_eq!(file.read(2).unwrap(), Some(cached()));
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        let other = json!({"models": 1});
        assert_eq!(CostFile::new(&folder.0, &other).read(2).unwrap(), None);
    }

    #[test]
    fn another_key_or_format_is_named() {
        assert_eq!(refused(|file| file["format"] = json!(9)), "it is of format 9, not 8");
        assert_eq!(refused(|file| *file = json!([])), "it is of format null, not 8");
        let hidden = refused(|file| file["key"]["models"]["hidden"] = json!(65));
        assert_eq!(hidden, "it is of something else: its key differs in `key.models.hidden`");
        assert_eq!(
            refused(|file| file["key"] = json!("none")),
            "it is of something else: its key differs in `key`"
        );
        assert_eq!(
            refused(|file| file["key"]["more"] = json!(0)),
            "it is of something else: its key differs in `key.more`"
        );
        assert_eq!(
            refused(|file| file["key"]["cores"] = json!([0])),
            "it is of something else: its key differs in `key.cores`"
        );
        let missing = refused(|file| file["key"]["models"] = Value::Null);
        assert_eq!(missing, "it is of something else: its key differs in `key.models`");
    }

    #[test]
    fn numbers_that_cannot_be_are_refused() {
        let times = |change: fn(&mut Value)| refused(move |file| change(&mut file["tables"][1]["verify"]));
        for change in [
            |table: &mut Value| table["passes"][3][1] = json!(-5),
            |table: &mut Value| table["passes"][3][1] = json!(1.5),
            |table: &mut Value| table["passes"][3] = Value::Null,
            |table: &mut Value| table["passes"] = json!([1, 2, 3]),
            |table: &mut Value| table["per_kv_fs"] = json!("much"),
            |table: &mut Value| *table = json!({}),
        ] {
            let why = times(change);
            assert!(why.starts_with("it is damaged: "), "{why}");
        }
        for (change, problem) in [
            ((|table| table["passes"][0][1] = json!(0)) as fn(&mut Value), "takes no time"),
            (|table| table["passes"][9][1] = json!(7), "takes less time"),
            (|table| table["passes"][9][0] = json!(7), "do not ascend"),
            (|table| table["passes"][0][0] = json!(0), "do not ascend"),
            (|table| table["passes"] = json!([[100, 1], [101, 1_000_000_000]]), "do not ascend from 1"),
            (|table| table["passes"] = json!([]), "too few"),
            (|table| table["passes"][14][0] = json!(u64::MAX), "too large"),
            (|table| table["passes"][14][1] = json!(u64::MAX), "longer than any"),
            (|table| table["per_row_fs"] = json!(1_000_000_000_000_001_u64), "longer than any"),
        ] {
            let why = times(change);
            assert!(why.starts_with("its table 1 is implausible: ") && why.contains(problem), "{why}");
        }
        let one = refused(|file| file["tables"] = json!([file["tables"][0]]));
        assert_eq!(one, "it has 1 tables, the device has 2 partitions");
    }

    #[test]
    fn files_cut_off_or_of_something_else_are_refused() {
        let (folder, key) = (Folder::new("damaged"), key());
        let file = CostFile::new(&folder.0, &key);
        file.write(&cached()).unwrap();
        let whole = fs::read(&file.path).unwrap();
        for bytes in
            [&whole[..whole.len() / 2], b"", b"\xff\xfe", b"{\"format\": NaN}", b"{\"format\": 1e999}"]
        {
            fs::write(&file.path, bytes).unwrap();
            let why = file.read(2).unwrap_err().to_string();
            assert!(why.starts_with("it is damaged: "), "{why}");
        }
        fs::write(&file.path, vec![b' '; MOST_BYTES as usize + 1]).unwrap();
        assert!(matches!(file.read(2).unwrap_err(), Unusable::TooLarge));
        fs::remove_file(&file.path).unwrap();
        fs::create_dir(&file.path).unwrap();
        assert!(matches!(file.read(2).unwrap_err(), Unusable::Read(_)));
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing_behind() {
        let (folder, key) = (Folder::new("unwritable"), key());
        let file = CostFile::new(&folder.0, &key);
        // A folder in its place: a rename over it fails for anyone, also for root.
        fs::create_dir_all(file.path.join("full")).unwrap();
        file.write(&cached()).unwrap_err();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_holds_so_many_files_and_those_of_others_stay() {
        let folder = Folder::new("room");
        fs::create_dir_all(&folder.0).unwrap();
        let others = folder.0.join("costs.txt");
        fs::write(&others, "").unwrap();
        let keys: Vec<Value> = (0..MOST_FILES + 6).map(|i| json!(i)).collect();
        let files: Vec<CostFile<'_>> = keys.iter().map(|key| CostFile::new(&folder.0, key)).collect();
        for (i, file) in files.iter().enumerate() {
            file.write(&cached()).unwrap();
            let age = Duration::from_secs((MOST_FILES + 6 - i) as u64);
            File::options()
                .write(true)
                .open(&file.path)
                .unwrap()
                .set_modified(SystemTime::now() - age)
                .unwrap();
        }
        assert!(others.exists());
        let there: Vec<bool> = files.iter().map(|file| file.path.exists()).collect();
        assert_eq!(there, [vec![false; 6], vec![true; MOST_FILES]].concat());
    }
}
