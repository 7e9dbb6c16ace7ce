//! The line that `systemctl status` shows: what the daemon does, how many requests it has, and what came of the last reload.

use std::cell::RefCell;

use actix_web::web;
use faser_openai::app::App;
use faser_openai::pairs::Pairs;

use super::notify;

/// Looks at the daemon, and tells the service manager what has changed.
pub struct Status {
    app: web::Data<App>,
    pairs: Pairs,
    url: String,
    reload: RefCell<String>,
    told: RefCell<String>,
}

impl Status {
    /// The status of a daemon that serves from now on; the manager is told that it does.
    pub fn ready(app: web::Data<App>, pairs: Pairs, url: String) -> Status {
        let status = Status { app, pairs, url, reload: RefCell::default(), told: RefCell::default() };
        notify::ready(&status.remember());
        status
    }

    /// A reload is over, with this outcome: the manager is told so, and the line keeps it.
    pub fn reloaded(&self, outcome: String) {
        *self.reload.borrow_mut() = outcome;
        // Who stops is not ready any more.
        if !self.app.draining() {
            notify::ready(&self.remember());
        }
    }

    /// The daemon is on its way down, for at most that long.
    pub fn stopping(&self, within: std::time::Duration) {
        notify::stopping(within, &self.remember());
    }

    /// Tells the line if it is another than before.
    pub fn tell(&self) {
        if *self.told.borrow() != self.line() {
            notify::status(&self.remember());
        }
    }

    fn remember(&self) -> String {
        let line = self.line();
        self.told.borrow_mut().clone_from(&line);
        line
    }

    fn line(&self) -> String {
        let requests = self.pairs.active();
        let names: Vec<&str> = self.pairs.iter().map(|served| served.name.as_str()).collect();
        let doing = match self.app.readiness(None) {
            Ok(()) => format!("serving {} on {}", names.join(", "), self.url),
            Err(why) => why,
        };
        let reload = self.reload.borrow();
        let reload = if reload.is_empty() { String::new() } else { format!("; last reload: {reload}") };
        format!("{doing}, requests: {requests}{reload}")
    }
}
