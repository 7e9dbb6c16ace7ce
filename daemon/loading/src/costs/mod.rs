//! What passes cost on this machine: read from an earlier start where that is possible, else measured and cached.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use faser_actors::{ProfileSpec, glance, profile};
use faser_config::device::Machine;
use faser_config::{Config, CostCache, ModelSource};
use faser_engine::cost::{PartitionCosts, Reach};
use serde_json::{Value, json};

use self::file::{CachedCosts, CostFile};
use self::key::{Key, Weights};
use crate::error::LoadError;
use crate::locate;

mod file;
mod json_file;
mod key;
mod learned;

pub use self::file::EarlierCosts;
pub use self::learned::LearnedFile;

/// Cost tables of all partitions, and where they are from.
#[derive(Debug)]
pub struct CostTables {
    /// In the order of the partitions.
    pub partitions: Vec<PartitionCosts>,
    /// Where they are from.
    pub source: CostSource,
    /// Where what engines learn is kept, if anything is cached.
    pub learned: Option<LearnedFile>,
}

/// Where cost tables are from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// From this start; the file they are cached in for the next one.
    Measured(Option<PathBuf>),
    /// From an earlier start.
    Read {
        /// The file they were cached in.
        file: PathBuf,
        /// Time since they were measured.
        age: Duration,
    },
}

impl fmt::Display for CostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostSource::Measured(Some(file)) => {
                write!(f, "measured now, cached in {}", file.display())
            }
            CostSource::Measured(None) => f.write_str("measured now, not cached"),
            CostSource::Read { file, age } => {
                write!(f, "measured {} ago, read from {}", spoken(*age), file.display())
            }
        }
    }
}

fn spoken(age: Duration) -> String {
    match age.as_secs() / 60 {
        0 => "less than a minute".to_owned(),
        minutes @ 1..120 => format!("{minutes} min"),
        minutes if minutes < 48 * 60 => format!("{} h", minutes / 60),
        minutes => format!("{} days", minutes / (24 * 60)),
    }
}

/// The tables of what `spec` describes, on this device. `progress` hears of measuring: lanes done, and all.
///
/// # Errors
/// A lane or its memory cannot be had, or the weights have gone since they were loaded. Never for the sake of a cached file.
pub fn tables(
    config: &Config,
    machine: &Machine,
    spec: &ProfileSpec<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CostTables, LoadError> {
    let mut measure = || Ok(profile(spec, progress)?);
    let Some(folder) = folder(config) else {
        if config.cost_cache == CostCache::Standard {
            tracing::warn!(
                "measured costs are not cached: neither CACHE_DIRECTORY nor XDG_CACHE_HOME nor HOME names a folder; \
                 name one by `speculation.cost_cache`"
            );
        }
        return Ok(CostTables { partitions: measure()?, source: CostSource::Measured(None), learned: None });
    };
    let (weights, samples) = weights(&config.model.source)?;
    let key = json!(Key::new(spec, machine, weights));
    let cache = Cache {
        folder: &folder,
        key: &key,
        partitions: spec.device.partitions().len(),
        again: config.profile,
    };
    let now = || if spec.device.is_shared() { glance(spec).ok() } else { None };
    let (partitions, source) = cache.read_or_measure(SystemTime::now(), now, measure)?;
    Ok(CostTables { partitions, source, learned: Some(LearnedFile::new(&folder, &key, &samples)) })
}

/// What is in a file that an earlier start has cached.
///
/// # Errors
/// The file is not there, is not such a file, or was measured without a draft.
pub fn earlier(path: &Path) -> Result<EarlierCosts, LoadError> {
    let unusable = |problem: String| LoadError::CostFile { path: path.to_owned(), problem };
    match file::earlier(path) {
        Ok(Some(costs)) => Ok(costs),
        Ok(None) => {
            Err(unusable("there is no such file; `faser check` names the one it has measured".to_owned()))
        }
        Err(why) => Err(unusable(why.to_string())),
    }
}

/// Where what takes long to find out is cached between two starts, if anywhere.
pub(crate) fn folder(config: &Config) -> Option<PathBuf> {
    match &config.cost_cache {
        CostCache::Off => None,
        CostCache::Folder(folder) => Some(folder.clone()),
        CostCache::Standard => standard(),
    }
}

/// By what the target's weights are told from others, on other nodes.
///
/// # Errors
/// They are not there.
pub(crate) fn target_digest(source: &ModelSource) -> Result<String, LoadError> {
    let ([target, _], [sample, _]) = weights(source)?;
    Ok(format!("{} {sample}", json!(target)))
}

/// The weights of target and draft, and samples of both.
fn weights(source: &ModelSource) -> Result<([Weights; 2], [String; 2]), LoadError> {
    let (target, draft) = match source {
        ModelSource::Synthetic { spec, .. } => {
            // Their seed says all.
            return Ok((
                [Weights::of_synthetic(spec), Weights::of_synthetic(spec)],
                [String::new(), String::new()],
            ));
        }
        ModelSource::Shape { .. } => return Err(LoadError::PlanOnly("model.shape")),
        ModelSource::Named { .. } => return Err(LoadError::NotFetched),
        ModelSource::Demo { .. } => {
            let folder = locate::demo_pair()?;
            (folder.join("target"), folder.join("draft"))
        }
        // Without a draft nothing is measured; the target stands in for it.
        ModelSource::Directories { target, draft } => {
            (target.clone(), draft.clone().unwrap_or_else(|| target.clone()))
        }
    };
    let weights = [Weights::of_folder(&target)?, Weights::of_folder(&draft)?];
    Ok((weights, [key::sample(&target)?, key::sample(&draft)?]))
}

/// A machine does not become faster: tables that say more than so many times what a pass takes now were measured while it was busy.
const BUSY: f64 = 1.4;
/// Tables that are no older are not looked at again: what the machine does now it did then.
const YOUNG: Duration = Duration::from_secs(600);

/// The lane that a pass of one row shows to be much faster than cached tables say, what they say of it, and what it takes now.
fn busy_then(cached: &PartitionCosts, now: &PartitionCosts) -> Option<(&'static str, Duration, Duration)> {
    let lanes = [("draft", &cached.draft, &now.draft), ("verify", &cached.verify, &now.verify)];
    lanes.into_iter().find_map(|(lane, cached, now)| {
        let [said, takes] = [cached, now].map(|cost| cost.seconds(1, Reach::NONE));
        (said > BUSY * takes).then(|| (lane, Duration::from_secs_f64(said), Duration::from_secs_f64(takes)))
    })
}

struct Cache<'a> {
    folder: &'a Path,
    key: &'a Value,
    partitions: usize,
    /// Measure even if tables are cached.
    again: bool,
}

impl Cache<'_> {
    fn read_or_measure(
        &self,
        now: SystemTime,
        glance: impl FnOnce() -> Option<PartitionCosts>,
        measure: impl FnOnce() -> Result<Vec<PartitionCosts>, LoadError>,
    ) -> Result<(Vec<PartitionCosts>, CostSource), LoadError> {
        let file = CostFile::new(self.folder, self.key);
        let cached = if self.again { Ok(None) } else { file.read(self.partitions) };
        match cached {
            Ok(Some(CachedCosts { partitions, measured })) => {
                // A clock that was set back makes no table younger than new.
                let age = now.duration_since(measured).unwrap_or_default();
                let old = partitions.first().filter(|_| age > YOUNG);
                let busy = old.and_then(|cached| busy_then(cached, &glance()?));
                let Some((lane, said, takes)) = busy else {
                    return Ok((partitions, CostSource::Read { file: file.path, age }));
                };
                tracing::info!(
                    lane,
                    ?said,
                    ?takes,
                    "the machine was busy when cached cost tables were measured: a pass of one row is faster now; measuring anew"
                );
            }
            Ok(None) => {}
            Err(why) => {
                tracing::warn!(file = %file.path.display(), %why, "cached cost tables cannot be used: measuring anew");
            }
        }
        let cached = CachedCosts { partitions: measure()?, measured: now };
        let written = file.write(&cached);
        if let Err(err) = &written {
            tracing::warn!(
                file = %file.path.display(), %err,
                "measured costs cannot be cached: the next start measures again; see `speculation.cost_cache`"
            );
        }
        let source = CostSource::Measured(written.is_ok().then_some(file.path));
        Ok((cached.partitions, source))
    }
}

#[cfg(test)]
mod tests;

/// `$CACHE_DIRECTORY` as systemd sets it, else `$XDG_CACHE_HOME/faser`, else `~/.cache/faser`; nothing if none is set.
pub(super) fn standard() -> Option<PathBuf> {
    standard_of(|name| std::env::var_os(name))
}

fn standard_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // A relative path would depend on where faser is started; the XDG specification wants it ignored too.
    let folder = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    systemd(variable("CACHE_DIRECTORY"))
        .or_else(|| folder("XDG_CACHE_HOME").map(|cache| cache.join("faser")))
        .or_else(|| folder("HOME").map(|home| home.join(".cache/faser")))
}

/// The first of a unit's cache directories, which are parted by colons.
fn systemd(directories: Option<OsString>) -> Option<PathBuf> {
    let first = std::env::split_paths(&directories?).next()?;
    Path::is_absolute(&first).then_some(first)
}
