//! `faser serve` on a node behind the first: it loads what it has of the target, and works for the first node until a signal ends it.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::rt;
use anyhow::Result;
use faser_actors::{NodeControl, NodeState, follow};
use faser_config::{Config, NodeConfig};
use faser_loading::load_pairs::load_node;
use faser_terminal::{Display, Hangups, Signals, SystemError, println};
use tokio::sync::mpsc::unbounded_channel;

use crate::systemd::{self, notify};

/// A first node that sends no plan for so long has no stream to end.
const IDLE_FOR: Duration = Duration::from_secs(2);
/// Between two words on why the first node cannot be reached.
const TELL_EVERY: Duration = Duration::from_secs(30);

/// Works until a signal ends it; returns the exit status. Needs a running actix System.
///
/// # Errors
/// The weights cannot be loaded, or the first node wants another one.
pub(crate) async fn serve_node(config: Config, node: NodeConfig) -> Result<i32> {
    let mut signals = Signals::take_over()?;
    let mut hangups = Hangups::take_over()?;
    let drain_timeout = config.drain_timeout;
    let control = Arc::new(NodeControl::default());
    let (tell, mut told) = unbounded_channel();
    let controlled = control.clone();
    let work = rt::task::spawn_blocking(move || -> Result<()> {
        let mut display = Display::new();
        let mut loading = notify::Loading::default();
        let loaded = load_node(&config, &mut |what, progress| {
            display.show(what, progress);
            let percent = progress.done_bytes * 100 / progress.total_bytes.max(1);
            loading.moved(what, progress.done_bytes, &format!("loading {what}: {percent} %"));
        });
        display.finish();
        let spec = loaded?;
        // Nobody hears it any more once the daemon ends.
        follow(&spec, &controlled, &mut |state| drop(tell.send(state)))?;
        Ok(())
    });
    let mut work = Box::pin(work);
    if let Some(period) = systemd::watchdog_period() {
        rt::spawn(async move { systemd::beat(period, async || true, notify::alive).await });
    }
    let teller = Rc::new(Teller { node });
    let (mut last_reason, mut works) = (None, false);
    loop {
        tokio::select! {
            ended = &mut work => {
                ended.map_err(|err| SystemError::Call { what: "work for the first node", source: err.into() })??;
                return Ok(0);
            }
            Some(state) = told.recv() => {
                works = state == NodeState::Working;
                teller.tell(state, &mut last_reason);
            }
            () = hangups.next() => tracing::info!("a node behind the first reloads nothing: restart it"),
            signal = signals.next() => {
                control.stop();
                if !works {
                    tracing::info!(signal = signal.name, "ended");
                    notify::stopping(Duration::ZERO, "ended");
                    return Ok(0);
                }
                // The first node may be draining: it ends the session once its streams have ended.
                tracing::info!(signal = signal.name, ?drain_timeout, "ends with its session");
                notify::stopping(drain_timeout, "ends with its session");
                tokio::select! {
                    _ = &mut work => {}
                    () = idle(&control) => {}
                    () = rt::time::sleep(drain_timeout) => tracing::warn!("the drain timeout is over: the session is broken off"),
                    _ = signals.next() => {}
                }
                tracing::info!("ended");
                return Ok(0);
            }
        }
    }
}

/// Waits until no plan has come for a while.
async fn idle(control: &NodeControl) {
    let mut before = None;
    while before != Some(control.plans()) {
        before = Some(control.plans());
        rt::time::sleep(IDLE_FOR).await;
    }
}

struct Teller {
    node: NodeConfig,
}

impl Teller {
    /// Says how the node is, to the log and to the service manager; the same reason only now and then.
    fn tell(&self, state: NodeState, last: &mut Option<(String, std::time::Instant)>) {
        let NodeConfig { place, rendezvous, .. } = &self.node;
        let name = format!("node {} of {}", place.rank, place.of);
        match state {
            NodeState::Coming(None) => {
                notify::still_starting(&format!("{name}: looking for {rendezvous}"));
                tracing::info!("{name}: looking for the first node at {rendezvous}");
            }
            NodeState::Coming(Some(reason)) => {
                notify::still_starting(&format!("{name}: cannot reach {reason}"));
                let known =
                    last.as_ref().is_some_and(|(known, at)| *known == reason && at.elapsed() < TELL_EVERY);
                if !known {
                    tracing::info!(reason, "{name}: the first node cannot be reached yet");
                    *last = Some((reason, std::time::Instant::now()));
                }
            }
            NodeState::Waiting => {
                notify::ready(&format!("{name}: has come to {rendezvous}"));
                // Nobody may be reading.
                let _ = println(&format!("{name}: has come to {rendezvous}"));
                tracing::info!("{name}: has come to the first node at {rendezvous}");
                *last = None;
            }
            NodeState::Working => {
                notify::status(&format!("{name}: works for {rendezvous}"));
                tracing::info!("{name}: works");
            }
            NodeState::Ended(None) => tracing::info!("{name}: the session has ended"),
            NodeState::Ended(Some(reason)) => tracing::warn!(reason, "{name}: the session was lost"),
        }
    }
}
