//! The table of keys that a running daemon takes over; `docs/operating.md` shows it, and a test compares.

use faser_engine::{EngineError, K_LIMIT, Tuning};
use serde_json::{Value, json};

use crate::config::Config;

/// A key that a running daemon takes over.
pub struct LiveKey {
    /// Its name, as `section.key`.
    pub key: &'static str,
    /// What of it counts when.
    pub when: &'static str,
    /// Its value in force, also if it was not written down.
    pub of: fn(&Config) -> Value,
}

/// All of them; every other key needs a restart.
pub const LIVE: &[LiveKey] = &[
    LiveKey {
        key: "drain_timeout_s",
        when: "the next SIGTERM",
        of: |config| config.drain_timeout.as_secs().into(),
    },
    LiveKey {
        key: "log.level",
        when: "at once",
        of: |config| config.log.level.to_string().to_lowercase().into(),
    },
    LiveKey {
        key: "scheduler.max_running",
        when: "the next admission; up to what the daemon was started with, and nobody is put back",
        of: |config| config.scheduler.max_running.into(),
    },
    LiveKey {
        key: "scheduler.max_waiting",
        when: "the next request; nobody who waits is refused",
        of: |config| config.scheduler.max_waiting.into(),
    },
    LiveKey {
        key: "server.allow_public_without_keys",
        when: "at once",
        of: |config| config.server.allow_public_without_keys.into(),
    },
    LiveKey {
        key: "server.api_keys_file",
        when: "the next request; the file itself is read again by every reload",
        of: |config| json!(config.server.api_keys_file),
    },
    LiveKey {
        key: "server.max_concurrent_per_key",
        when: "the next request",
        of: |config| json!(config.server.max_concurrent_per_key),
    },
    LiveKey {
        key: "server.tls.cert",
        when: "the next connection, if HTTPS was spoken before; the file itself is read again by every reload",
        of: |config| json!(config.server.tls.as_ref().map(|tls| &tls.cert)),
    },
    LiveKey {
        key: "server.tls.key",
        when: "as `server.tls.cert`",
        of: |config| json!(config.server.tls.as_ref().map(|tls| &tls.key)),
    },
    LiveKey { key: "speculation.k_max", when: "the next pass", of: |config| json!(config.speculation.k_max) },
    LiveKey {
        key: "speculation.lookup",
        when: "the next pass; switched on, requests that come from then on",
        of: |config| config.speculation.mechanisms.lookup.into(),
    },
    LiveKey {
        key: "speculation.overlap",
        when: "the next pass",
        of: |config| config.speculation.mechanisms.overlap.into(),
    },
    LiveKey {
        key: "speculation.partition",
        when: "the next pass; a partition whose costs are known",
        of: |config| json!(config.speculation.partition),
    },
    LiveKey {
        key: "speculation.policy",
        when: "the next pass; `budget` and `faser` if costs are known: by the start, or by `faser ctl profile`",
        of: |config| config.speculation.policy.to_string().into(),
    },
    LiveKey {
        key: "speculation.prune",
        when: "the next pass",
        of: |config| config.speculation.mechanisms.prune.into(),
    },
    LiveKey {
        key: "speculation.slo.tpot_ms",
        when: "requests that come from then on",
        of: |config| json!(config.speculation.slo.tpot.map(|target| target.as_millis() as u64)),
    },
    LiveKey {
        key: "speculation.slo.ttft_ms",
        when: "requests that come from then on",
        of: |config| json!(config.speculation.slo.ttft.map(|target| target.as_millis() as u64)),
    },
    LiveKey {
        key: "speculation.trim",
        when: "the next pass",
        of: |config| config.speculation.mechanisms.trim.into(),
    },
];

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

/// How engines decide by this config.
pub fn tuning(config: &Config) -> Tuning {
    let speculation = &config.speculation;
    Tuning {
        policy: speculation.policy.clone(),
        mechanisms: speculation.mechanisms,
        slo: speculation.slo,
        k_max: speculation.k_max.unwrap_or(K_LIMIT),
        partition: speculation.partition,
        max_running: config.scheduler.max_running,
        max_waiting: config.scheduler.max_waiting,
    }
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
        | EngineError::Source(_) => return None,
    };
    let mut own = keys.iter().filter(|key| of_pair(key) == Some((pair, of)));
    own.next().or_else(|| keys.iter().find(|key| *key == of)).map(String::as_str)
}
