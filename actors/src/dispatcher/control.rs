//! What operators ask of the dispatcher: a look at it, an end of one request, other decisions from now on.

use faser_engine::Event;

use super::FrontierDispatcher;
use crate::control::{Control, Look};
use crate::watching::Watching;

impl FrontierDispatcher {
    /// Does what is asked. Whoever asked may have gone: then nobody hears of it.
    pub(super) fn control(&mut self, control: Control) {
        match control {
            Control::Look { requests, seen, answer } => {
                let now = self.origin.elapsed();
                let engine = &self.engine;
                let recent = seen.map(|seen| {
                    let watching = &mut self.watching;
                    watching.get_or_insert_with(|| Box::new(Watching::new(now, engine))).recent(now, seen)
                });
                let _ = answer.send(Look {
                    now,
                    view: engine.view(),
                    tuning: engine.tuning().clone(),
                    requests: engine.requests(now, requests),
                    recent,
                });
            }
            Control::Cancel { seq, answer } => {
                let there = self.links.requests.taken(seq);
                self.tell(Event::Cancel(seq), None);
                let _ = answer.send(there);
            }
            Control::Tunable { tuning, answer } => {
                let _ = answer.send(self.engine.config().tunable(&tuning));
            }
            Control::Tune { tuning, answer } => {
                let tunable = self.engine.config().tunable(&tuning);
                if tunable.is_ok() {
                    self.tell(Event::Tune(tuning), None);
                }
                let _ = answer.send(tunable);
            }
            Control::Profiled { partitions, answer } => {
                self.tell(Event::Profiled(partitions), None);
                let _ = answer.send(());
            }
        }
    }
}
