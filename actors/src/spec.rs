//! What a service is built from.

use faser_engine::EngineConfig;

use crate::device::DeviceSpec;
use crate::error::ServiceError;
use crate::failures::WatchdogConfig;

/// Everything a service is built from.
pub struct ServiceSpec {
    /// The pair and where it runs.
    pub device: DeviceSpec,
    /// The engine's bounds; it has blocks for a draft exactly when there is one.
    pub engine: EngineConfig,
    /// When a device counts as failed.
    pub watchdog: WatchdogConfig,
}

/// The largest passes an engine asks for: what `Scratch` has to be made for on each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassLimits {
    /// Rows of a pass, on either lane.
    pub rows: usize,
    /// Rows of a draft pass whose logits are wanted.
    pub draft_logit_rows: usize,
    /// Rows of a verify pass whose logits are wanted.
    pub verify_logit_rows: usize,
}

impl PassLimits {
    /// The limits that follow from an engine's bounds.
    pub fn of(engine: &EngineConfig) -> PassLimits {
        let k = engine.speculation.room;
        let rows = engine.max_pass_rows;
        PassLimits {
            rows,
            draft_logit_rows: engine.tuning.max_running.min(rows),
            verify_logit_rows: engine.tuning.max_running.saturating_mul(k + 1).min(rows),
        }
    }
}

impl ServiceSpec {
    /// Checks what the parts say of each other.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        self.device.check()?;
        let contradiction = |text: String| Err(ServiceError::Contradiction(text));
        let engine = &self.engine;
        let (target, draft) = (self.device.target(), self.device.draft());
        if draft.is_some() != engine.draft.drafts() {
            return contradiction(format!(
                "the engine plans for {}, and the device has another",
                engine.draft
            ));
        }
        let drafted = draft.map(|draft| {
            let holds = draft.config.max_context;
            ("draft_context", engine.max_context.min(engine.speculation.draft_context), holds)
        });
        let verified = ("max_context", engine.max_context, target.config.max_context);
        for (name, asked, holds) in std::iter::once(verified).chain(drafted) {
            if asked > holds {
                return contradiction(format!(
                    "{name} is {asked}, but the model has {holds} positions; lower it"
                ));
            }
        }
        let (known, there) = (engine.partitions.len(), self.device.partitions().len());
        if there == 0 || known > there {
            return contradiction(format!(
                "the engine knows what {known} partitions cost, and the device has {there}"
            ));
        }
        if let Some(tokens) = self.device.block_size().filter(|tokens| *tokens != engine.block_size) {
            let asked = engine.block_size;
            return contradiction(format!("KV blocks have {tokens} tokens on this device, not {asked}"));
        }
        Ok(())
    }
}
