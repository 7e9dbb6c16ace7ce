//! Measuring anew what passes cost, in a daemon that runs: on a CPU, while there is nothing else to do.

use actix_web::web;
use faser_actors::ProfileSpec;
use faser_config::Config;
use faser_loading::costs;
use faser_openai::errors::ApiError;
use serde_json::json;

use super::admin_errors::conflict;
use super::admin_openapi::Measured;
use super::audit;
use super::look::Admin;
use super::peer::Peer;

/// Why nothing is taken meanwhile.
const MEASURING: &str = "measuring what passes cost";

impl Admin {
    pub(super) async fn measure(&self, pair: Option<&str>, peer: &Peer) -> Result<Measured, ApiError> {
        self.not_ending()?;
        let pairs = self.pairs()?;
        let served = pairs.named(pair)?.clone();
        if let Some(why) = served.device.measures_alone() {
            return Err(conflict("no_memory", format!("{why}: restart with `faser serve --profile`")));
        }
        let busy = || conflict("measuring", "costs are being measured already");
        let _measuring = self.measuring.try_lock().map_err(|_| busy())?;
        let before = self.app.paused();
        self.app.pause(Some(MEASURING));
        // Of all pairs: they share the cores.
        let active = pairs.active();
        let done = || {
            // Who drained meanwhile has the last word.
            if self.app.paused() == Some(MEASURING) {
                self.app.pause(before);
            }
        };
        if active > 0 {
            done();
            let message = format!(
                "{active} requests are in flight, and would be measured too: wait, or `faser ctl drain --wait 60`, \
                 `faser ctl profile`, `faser ctl resume`"
            );
            return Err(conflict("busy", message));
        }
        let measured = web::block({
            let served = served.clone();
            move || {
                let bounds = &served.bounds;
                let spec = ProfileSpec {
                    device: &served.device,
                    block_size: bounds.block_size,
                    max_rows: bounds.max_pass_rows,
                    max_context: bounds.max_context,
                    deterministic: bounds.deterministic,
                };
                let config = Config { profile: true, ..served.config.clone() };
                costs::tables(&config, &served.machine, &spec, &mut |_, _| {}).map_err(|err| err.to_string())
            }
        });
        let measured = measured.await.map_err(|err| err.to_string()).and_then(|tables| tables);
        if let Ok(tables) = &measured {
            served.service.profiled(&tables.partitions).await;
        }
        done();
        let tables = measured.map_err(|why| ApiError::internal(why, "profile"))?;
        let measured = Measured { partitions: tables.partitions.len(), source: tables.source.to_string() };
        audit::changed(peer, "profile", &json!(null), &json!(measured));
        Ok(measured)
    }
}
