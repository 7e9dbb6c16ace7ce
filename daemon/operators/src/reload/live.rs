//! The table of keys that a running daemon takes over; `docs/operating.md` shows it, and a test compares.

use std::sync::LazyLock;

use faser_config::Config;
use faser_config::tunables::{TUNABLES, Tunable};
use faser_engine::EngineError;
use serde_json::{Value, json};

/// A key that a running daemon takes over.
pub struct LiveKey {
    /// Its name, as `section.key`.
    pub key: &'static str,
    /// What of it counts when.
    pub when: &'static str,
    of: Of,
}

/// Where the value of a key in force is.
enum Of {
    Config(fn(&Config) -> Value),
    Tuning(&'static Tunable),
}

impl LiveKey {
    /// Its value in force, also if it was not written down.
    pub fn value(&self, config: &Config) -> Value {
        match self.of {
            Of::Config(of) => of(config),
            Of::Tuning(tunable) => tunable.value(&config.tuning),
        }
    }
}

/// All of them, by their keys; every other key needs a restart.
pub static LIVE: LazyLock<Vec<LiveKey>> = LazyLock::new(|| {
    let tunables = TUNABLES.iter().map(|tunable| {
        let Tunable { key, when, .. } = *tunable;
        LiveKey { key, when, of: Of::Tuning(tunable) }
    });
    let mut all: Vec<LiveKey> = tunables.chain(others()).collect();
    all.sort_by_key(|live| live.key);
    all
});

const fn live(key: &'static str, when: &'static str, of: fn(&Config) -> Value) -> LiveKey {
    LiveKey { key, when, of: Of::Config(of) }
}

/// Those that tune no engine.
fn others() -> [LiveKey; 7] {
    [
        live("drain_timeout_s", "the next SIGTERM", |config| config.drain_timeout.as_secs().into()),
        live("log.level", "at once", |config| config.log.level.to_string().to_lowercase().into()),
        live("server.allow_public_without_keys", "at once", |config| {
            config.server.allow_public_without_keys.into()
        }),
        live(
            "server.api_keys_file",
            "the next request; the file itself is read again by every reload",
            |config| json!(config.server.api_keys_file),
        ),
        live("server.max_concurrent_per_key", "the next request", |config| {
            json!(config.server.max_concurrent_per_key)
        }),
        live(
            "server.tls.cert",
            "the next connection, if HTTPS was spoken before; the file itself is read again by every reload",
            |config| json!(config.server.tls.as_ref().map(|tls| &tls.cert)),
        ),
        live("server.tls.key", "as `server.tls.cert`", |config| {
            json!(config.server.tls.as_ref().map(|tls| &tls.key))
        }),
    ]
}

/// The number of the pair whose key this is, such as `pairs[1].scheduler.max_running`, and the key within it; none of a key for all.
pub(super) fn of_pair(key: &str) -> Option<(usize, &str)> {
    let (number, key) = key.strip_prefix("pairs[")?.split_once("].")?;
    Some((number.parse().ok()?, key))
}

/// A live key, of all or of a pair.
pub(super) fn find(key: &str) -> Option<&'static LiveKey> {
    let name = of_pair(key).map_or(key, |(_, key)| key);
    LIVE.iter().find(|live| live.key == name)
}

/// The config that a key's value in force is told by: that of its pair.
pub(super) fn config_of<'c>(key: &str, config: &'c Config) -> Option<&'c Config> {
    of_pair(key).map_or(Some(config), |(pair, _)| config.pairs.get(pair))
}

/// Why an engine refuses, and what there is to do about it but a restart.
pub(super) fn why(err: &EngineError) -> String {
    match err {
        EngineError::NoCosts(_) => format!("{err}; `faser ctl profile` measures them"),
        other => other.to_string(),
    }
}

/// Which of the keys that change an engine of this pair refuses: one of its own first. `None` if that cannot be said.
pub(super) fn culprit<'k>(err: &EngineError, pair: usize, keys: &'k [String]) -> Option<&'k str> {
    let of = match err {
        EngineError::Beyond { name: "max_running", .. } => "scheduler.max_running",
        EngineError::Beyond { .. } | EngineError::NoCosts(_) | EngineError::Policy(_) => "speculation.policy",
        EngineError::Partition { .. } => "speculation.partition",
        EngineError::Zero(_)
        | EngineError::PassTooSmall { .. }
        | EngineError::PoolTooSmall { .. }
        | EngineError::Copies { .. } => return None,
    };
    let mut own = keys.iter().filter(|key| of_pair(key) == Some((pair, of)));
    own.next().or_else(|| keys.iter().find(|key| *key == of)).map(String::as_str)
}
