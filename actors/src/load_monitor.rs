//! LoadMonitor: publishes the engine's load view as metrics. It observes; nothing depends on it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::{Actor, AsyncContext, Context, Handler};

use faser_engine::LoadView;

use crate::load_metrics::LoadMetrics;

/// How often the gauges are refreshed while requests run.
const PERIOD: Duration = Duration::from_millis(500);
/// All messages say the same, "look now": one that waits is enough.
const MAILBOX_CAPACITY: usize = 1;

/// The engine's latest load view: put there by the dispatcher after each event, read by anyone at any time.
#[derive(Default)]
pub(crate) struct LoadBoard(Mutex<LoadView>);

impl LoadBoard {
    pub(crate) fn put(&self, view: LoadView) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = view;
    }

    pub(crate) fn get(&self) -> LoadView {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The actor.
pub(crate) struct LoadMonitor {
    board: Arc<LoadBoard>,
    metrics: Arc<LoadMetrics>,
}

impl LoadMonitor {
    pub(crate) fn new(board: Arc<LoadBoard>, metrics: Arc<LoadMetrics>) -> LoadMonitor {
        LoadMonitor { board, metrics }
    }

    fn publish(&self) {
        self.metrics.publish(&self.board.get());
    }
}

impl Actor for LoadMonitor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(MAILBOX_CAPACITY);
        self.publish();
        ctx.run_interval(PERIOD, |monitor, _| monitor.publish());
    }
}

/// The engine has just become idle: publish the final figures now.
pub(crate) struct LookNow;

impl actix::Message for LookNow {
    type Result = ();
}

impl Handler<LookNow> for LoadMonitor {
    type Result = ();

    fn handle(&mut self, _: LookNow, _: &mut Self::Context) {
        self.publish();
    }
}
