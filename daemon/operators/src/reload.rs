//! What a running daemon takes over: the config file read again (SIGHUP, `faser ctl reload`), and single keys that an operator sets.
//! One way for all of them, and nothing happens by halves.

mod live;

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use faser_actors::TuneError;
use faser_engine::EngineError;
use serde::Serialize;
use serde_json::Value;

pub use self::live::{LIVE, LiveKey};
use crate::log::LogLevel;
use faser_config::changes::{changed, value, with};
use faser_config::raw::{ConfigSource, Document};
use faser_config::{Config, ConfigError};
use faser_openai::access::{Access, Renewal};
use faser_openai::pairs::Pairs;

/// The config that is in force, and where the next one comes from.
pub struct Reload {
    source: ConfigSource,
    running: Document,
    config: Config,
    level: LogLevel,
    access: Option<Arc<Access>>,
}

/// What came of a change of the config, as keys of the config file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Changes {
    /// In force now.
    pub applied: Vec<Change>,
    /// In force after a restart, and not before.
    pub restart: Vec<Change>,
}

/// A key that has changed.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Change {
    /// Its name, as `section.key`.
    pub key: String,
    /// What was in force; null for a default that was not written down, unless it is a live key.
    pub before: Value,
    /// What is to be in force.
    pub after: Value,
    /// Why it has to wait for a restart although keys like it do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Why nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// The config is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A key cannot be changed in this daemon.
    #[error("`{key}` cannot be changed without a restart: {why}")]
    Restart {
        /// The key.
        key: String,
        /// Why not.
        why: String,
    },
    /// Somebody else has changed the config since; this is its tag.
    #[error("the config is another by now ({0}): look at it again")]
    Outdated(String),
    /// The service has stopped, or hangs.
    #[error("the service has stopped or hangs")]
    Stopped,
}

impl Reload {
    /// `running` and `config` are what `source` stood for at the start.
    pub fn new(source: ConfigSource, running: Document, config: Config, level: LogLevel) -> Reload {
        Reload { source, running, config, level, access: None }
    }

    /// From now on keys and certificates are read again too, also if the config has not changed.
    pub fn manage(&mut self, access: Arc<Access>) {
        self.access = Some(access);
    }

    /// What is in force. Of keys that need a restart: what was in force at the start.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The keys that are in force and were written down, as they stand in the file.
    pub fn written(&self) -> &Value {
        self.running.root()
    }

    /// The config file.
    pub fn file(&self) -> Option<&std::path::Path> {
        self.source.file.as_deref()
    }

    /// A tag that is another one after every change.
    pub fn tag(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.running.root().to_string().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Refuses if the tag is not this one.
    ///
    /// # Errors
    /// It is another.
    pub fn expect(&self, tag: Option<&str>) -> Result<(), ReloadError> {
        match tag {
            Some(tag) if tag.trim_matches('"') != self.tag() => Err(ReloadError::Outdated(self.tag())),
            _ => Ok(()),
        }
    }

    /// The file as it is now. A pipe could be read once, when the daemon was started: now that would be to wait for who writes into it.
    fn document(&self) -> Result<Document, ConfigError> {
        if let Some(file) = self.source.file.as_ref().filter(|file| file.exists() && !file.is_file()) {
            let message = "it is no regular file, and cannot be read again".to_owned();
            return Err(ConfigError { place: Some(file.display().to_string()), message });
        }
        self.source.document()
    }

    /// What a reload would change now.
    ///
    /// # Errors
    /// The file is wrong.
    pub fn pending(&self) -> Result<Vec<String>, ConfigError> {
        changed(&self.running, &self.document()?)
    }

    /// Reads the file again, with the same flags of the command line over it. Keys that `pairs` cannot take over wait for a restart.
    ///
    /// # Errors
    /// The file is wrong, or the service has stopped or hangs: nothing has changed.
    pub async fn run(&mut self, pairs: Option<&Pairs>) -> Result<Changes, ReloadError> {
        let document = self.document()?;
        let whole = Config::from_document(&document)?;
        let change = |key: &String, why| self.change(&document, key, why);
        let found = changed(&self.running, &document)?;
        let (mut live, waiting): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|key| self.is_live(key, &whole));
        let mut restart: Vec<Change> = waiting.iter().map(|key| change(key, None)).collect();
        let (next, config) = loop {
            let next =
                live.iter().fold(self.running.clone(), |next, key| with(&next, key, value(&document, key)));
            let refused = match Config::from_document(&next) {
                Ok(config) => match tunable(pairs, &config).await? {
                    Ok(()) => break (next, config),
                    Err((pair, err)) => {
                        (live::culprit(&err, pair, &live).map(str::to_owned), live::why(&err))
                    }
                },
                // Right only together with keys that wait.
                Err(err) => (None, err.message),
            };
            let (culprit, why) = refused;
            let late = |key: &String| culprit.as_ref().is_none_or(|culprit| culprit == key);
            let (late, rest): (Vec<String>, Vec<String>) = live.into_iter().partition(late);
            live = rest;
            restart.extend(late.iter().map(|key| change(key, Some(why.clone()))));
        };
        let mut applied: Vec<Change> = live.iter().map(|key| change(key, None)).collect();
        restart.sort_by(|a, b| a.key.cmp(&b.key));
        let access = self.access.clone();
        let renewal = access.as_ref().map(|access| access.read(&config.server)).transpose()?;
        self.take_over(next, config, pairs).await?;
        for key in renewal.map_or_else(Vec::new, Renewal::apply) {
            if !applied.iter().any(|change| change.key == key) {
                let (key, after) = (key.to_owned(), "read again".into());
                applied.push(Change { key, before: Value::Null, after, why: None });
            }
        }
        Ok(Changes { applied, restart })
    }

    /// Sets these keys, all of them or none, of one pair of several or of all; null takes the default again, of one pair what is said for all.
    ///
    /// # Errors
    /// A value is wrong, a key needs a restart, or the service has stopped or hangs: nothing has changed.
    pub async fn set(
        &mut self,
        keys: &[(&'static str, Value)],
        pair: Option<usize>,
        pairs: Option<&Pairs>,
    ) -> Result<Changes, ReloadError> {
        let next = keys.iter().fold(self.running.clone(), |next, (key, value)| {
            let value = Some(value).filter(|value| !value.is_null());
            match pair.filter(|_| !self.config.pairs.is_empty()) {
                Some(pair) => with(&next, &format!("pairs[{pair}].{key}"), value),
                // What pairs say themselves gives way.
                None => (0..self.config.pairs.len()).fold(with(&next, key, value), |next, pair| {
                    with(&next, &format!("pairs[{pair}].{key}"), None)
                }),
            }
        });
        // The value comes from no line of the file.
        let config = Config::from_document(&next).map_err(|err| ConfigError { place: None, ..err })?;
        let found = changed(&self.running, &next)?;
        if let Err((pair, err)) = tunable(pairs, &config).await? {
            let key = live::culprit(&err, pair, &found).map_or_else(|| found.join(", "), str::to_owned);
            return Err(ReloadError::Restart { key, why: live::why(&err) });
        }
        let applied = found.iter().map(|key| self.change(&next, key, None)).collect();
        self.take_over(next, config, pairs).await?;
        Ok(Changes { applied, restart: Vec::new() })
    }

    /// Whether a key can change in this daemon, on its way to `next`.
    fn is_live(&self, key: &str, next: &Config) -> bool {
        let access = || self.access.as_ref().map_or(&[][..], |access| access.live(&next.server));
        match live::of_pair(key) {
            // Where pairs come, go or change places, a place is not that of the same pair any more.
            Some(_) => live::find(key).is_some() && same_pairs(&self.config, next),
            None => live::find(key).is_some() && (!key.starts_with("server.") || access().contains(&key)),
        }
    }

    async fn take_over(
        &mut self,
        next: Document,
        config: Config,
        pairs: Option<&Pairs>,
    ) -> Result<(), ReloadError> {
        for (served, config) in pairs.iter().flat_map(|pairs| pairs.iter()).zip(config.each()) {
            served.service.tune(&config.tuning).await.map_err(|err| match err {
                TuneError::Engine(err) => {
                    ReloadError::Restart { key: "speculation".to_owned(), why: err.to_string() }
                }
                TuneError::Stopped => ReloadError::Stopped,
            })?;
        }
        // Also when it is the same: an operator may ask again for what somebody else has changed.
        if !self.level.set(config.log.level) {
            tracing::warn!("`log.level` cannot be changed in this process");
        }
        (self.running, self.config) = (next, Config { profile: self.config.profile, ..config });
        Ok(())
    }

    /// A key's change, with the values in force where they can be told.
    fn change(&self, next: &Document, key: &str, why: Option<String>) -> Change {
        let written = |document| value(document, key).cloned().unwrap_or(Value::Null);
        let mut change =
            Change { key: key.to_owned(), before: written(&self.running), after: written(next), why };
        if let Some(live) = live::find(key) {
            let of = |config: &Config| live::config_of(key, config).map(|config| live.value(config));
            change.before = of(&self.config).unwrap_or(change.before);
            if let Ok(config) = Config::from_document(next) {
                change.after = of(&config).unwrap_or(change.after);
            }
        }
        change
    }
}

/// Whether both are of the same pairs, in the same order.
fn same_pairs(one: &Config, other: &Config) -> bool {
    let names = |config: &Config| config.pairs.iter().map(|pair| pair.model.name.clone()).collect::<Vec<_>>();
    names(one) == names(other)
}

/// Whether the replicas of all pairs can decide as `config` says; if not, which pair's cannot.
async fn tunable(
    pairs: Option<&Pairs>,
    config: &Config,
) -> Result<Result<(), (usize, EngineError)>, ReloadError> {
    let all = pairs.iter().flat_map(|pairs| pairs.iter()).zip(config.each());
    for (pair, (served, config)) in all.enumerate() {
        match served.service.tunable(&config.tuning).await {
            Ok(()) => {}
            Err(TuneError::Engine(err)) => return Ok(Err((pair, err))),
            Err(TuneError::Stopped) => return Err(ReloadError::Stopped),
        }
    }
    Ok(Ok(()))
}

impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = |changes: &[Change]| {
            changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
        };
        match (self.applied.as_slice(), self.restart.as_slice()) {
            ([], []) => f.write_str("nothing has changed"),
            (applied, []) => write!(f, "applied: {}", keys(applied)),
            ([], restart) => write!(f, "needs a restart: {}", keys(restart)),
            (applied, restart) => {
                write!(f, "applied: {}; needs a restart: {}", keys(applied), keys(restart))
            }
        }
    }
}

#[cfg(test)]
mod tests;
