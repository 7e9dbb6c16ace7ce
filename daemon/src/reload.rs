//! SIGHUP: reads the config file again, applies what can change in a running daemon, and says what has to wait for a restart.

use std::sync::Arc;

use crate::access::{Access, Renewal};
use crate::cli::ServeArgs;
use crate::config::ConfigError;
use crate::config::changes::{changed, value, with};
use crate::config::raw::Document;
use crate::log::LogLevel;

/// Keys that a running daemon takes over.
const LIVE: &[&str] = &["log.level"];

/// The config that is in force, and where the next one comes from.
pub struct Reload {
    args: ServeArgs,
    running: Document,
    level: LogLevel,
    access: Option<Arc<Access>>,
}

/// What a reload found, as keys of the config file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// In force now.
    pub applied: Vec<String>,
    /// In force after a restart, and not before.
    pub restart: Vec<String>,
}

impl Reload {
    /// `running` is what `args` stood for at the start.
    pub fn new(args: ServeArgs, running: Document, level: LogLevel) -> Reload {
        Reload { args, running, level, access: None }
    }

    /// From now on keys are read again too, also if the config has not changed.
    pub fn manage(&mut self, access: Arc<Access>) {
        self.access = Some(access);
    }

    /// Reads the file again, with the same flags of the command line over it.
    ///
    /// # Errors
    /// The file is wrong: nothing has changed.
    pub fn run(&mut self) -> Result<Changes, ConfigError> {
        let document = self.args.document()?;
        let config = self.args.config_of(&document)?;
        let renewal = self.access.as_ref().map(|access| access.read(&config.server)).transpose()?;
        let more = self.access.as_ref().map_or(&[][..], |access| access.live(&config.server));
        let live = |key: &String| LIVE.contains(&key.as_str()) || more.contains(&key.as_str());
        let (mut applied, restart): (Vec<_>, Vec<_>) =
            changed(&self.running, &document)?.into_iter().partition(live);
        for key in &applied {
            self.running = with(&self.running, key, value(&document, key));
        }
        // Also when it is the same: an operator may ask again for what somebody else has changed.
        if !self.level.set(config.log.level) {
            tracing::warn!("`log.level` cannot be changed in this process");
        }
        for changed in renewal.map_or_else(Vec::new, Renewal::apply) {
            if !applied.iter().any(|key| key == changed) {
                applied.push(changed.to_owned());
            }
        }
        Ok(Changes { applied, restart })
    }
}

impl std::fmt::Display for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.applied.as_slice(), self.restart.as_slice()) {
            ([], []) => f.write_str("nothing has changed"),
            (applied, []) => write!(f, "applied: {}", applied.join(", ")),
            ([], restart) => write!(f, "needs a restart: {}", restart.join(", ")),
            (applied, restart) => {
                write!(f, "applied: {}; needs a restart: {}", applied.join(", "), restart.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use clap::Parser;
    use tracing::Level;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn live_keys_are_applied_others_wait_and_an_invalid_file_changes_nothing() {
        let folder = std::env::temp_dir().join(format!("faser-reload-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("faser.yaml");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("log: {level: warn}\n");
        let line = ["faser", "serve", "--listen", "127.0.0.1:9", "-c", file.to_str().unwrap()];
        let Command::Serve(args) = Cli::try_parse_from(line).unwrap().command else { panic!("another") };
        let levels = Arc::new(Mutex::new(Vec::new()));
        let level = LogLevel::told(Arc::clone(&levels));
        let running = args.document().unwrap();
        let mut reload = Reload::new(args, running, level);
        let mut run = || reload.run().map(|changes| changes.to_string()).map_err(|err| err.message);
        assert_eq!(run().unwrap(), "nothing has changed");
        // The flag goes on hiding the file's key.
        write("log: {level: debug}\nserver: {workers: 5, listen: '127.0.0.1:10'}\n");
        assert_eq!(run().unwrap(), "applied: log.level; needs a restart: server.workers");
        // What waits for a restart goes on waiting, what is in force is no change.
        assert_eq!(run().unwrap(), "needs a restart: server.workers");
        write("log: {level: trace, colour: red}\n");
        assert!(run().unwrap_err().contains("log.colour"), "an unknown key");
        write("log: [");
        assert!(run().unwrap_err().contains("YAML"));
        write("");
        assert_eq!(run().unwrap(), "applied: log.level");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(run().unwrap_err().contains("cannot read"));
        assert_eq!(*levels.lock().unwrap(), [Level::WARN, Level::DEBUG, Level::DEBUG, Level::INFO]);
    }
}
