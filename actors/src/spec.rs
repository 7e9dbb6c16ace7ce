//! What a service is built from, and how a device's lanes are made of it.

use std::sync::Arc;

use faser_engine::EngineConfig;
use faser_kernels::Isa;
use faser_models::Model;
use faser_topology::{LanePair, Partition, Placement};

use crate::error::ServiceError;
use crate::failures::WatchdogConfig;
use crate::gpu_actor::DeviceBuild;
use crate::lane::Run;
use crate::runner::{DraftRunner, DraftWork, RunnerSpec, VerifyRunner, VerifyWork};
use crate::shed::ShedReader;

/// Everything a service is built from.
pub struct ServiceSpec {
    /// The target model.
    pub target: Arc<Model>,
    /// The draft model, of the same vocabulary; without one nobody speculates.
    pub draft: Option<Arc<Model>>,
    /// The lanes' partitions and the sizes of the pools.
    pub placement: Placement,
    /// The instruction set of the kernels.
    pub isa: Isa,
    /// The engine's bounds; its pools must be those of the placement, the draft's 0 exactly when there is no draft.
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
        let k = engine.policy.k_max();
        let rows = engine.max_pass_rows;
        PassLimits {
            rows,
            draft_logit_rows: engine.max_running.min(rows),
            verify_logit_rows: engine.max_running.saturating_mul(k + 1).min(rows),
        }
    }
}

impl ServiceSpec {
    /// Checks what the parts say of each other.
    pub(crate) fn check(&self) -> Result<(), ServiceError> {
        let contradiction = |text: String| Err(ServiceError::Contradiction(text));
        let (engine, placement) = (&self.engine, &self.placement);
        if (engine.target_blocks, engine.draft_blocks) != (placement.target_blocks, placement.draft_blocks) {
            return contradiction(format!(
                "the engine has {} target and {} draft blocks, the placement {} and {}; take the placement's",
                engine.target_blocks, engine.draft_blocks, placement.target_blocks, placement.draft_blocks
            ));
        }
        if self.draft.is_some() != (engine.draft_blocks > 0) {
            return contradiction(
                "a draft model and draft blocks go together: give both or neither".to_owned(),
            );
        }
        let models = [Some(&self.target), self.draft.as_ref()].into_iter().flatten();
        for model in models {
            let holds = model.config().max_context;
            if engine.max_context > holds {
                return contradiction(format!(
                    "max_context is {}, but a model has {holds} positions; lower it",
                    engine.max_context
                ));
            }
        }
        Ok(())
    }

    /// How to make this service's device.
    pub(crate) fn device_build(&self) -> DeviceBuild {
        let limits = PassLimits::of(&self.engine);
        let runner_spec = |lane: fn(&LanePair) -> &Partition, blocks, logit_rows| RunnerSpec {
            partitions: self.placement.partitions.iter().map(|pair| lane(pair).clone()).collect(),
            isa: self.isa,
            blocks,
            block_size: self.engine.block_size,
            max_rows: limits.rows,
            max_logit_rows: logit_rows,
        };
        let verify = runner_spec(|pair| &pair.verify, self.engine.target_blocks, limits.verify_logit_rows);
        let target = self.target.clone();
        let draft_spec = runner_spec(|pair| &pair.draft, self.engine.draft_blocks, limits.draft_logit_rows);
        DeviceBuild {
            draft: self.draft.clone().map(|model| {
                Arc::new(move |shed| {
                    let mut runner = DraftRunner::new(model.clone(), &draft_spec)?;
                    runner.shedding(Box::new(ShedReader::new(shed)));
                    say_if_unpinned("draft", runner.pin_current_thread());
                    Ok(Box::new(move |work: DraftWork| runner.run(work)) as Run<DraftWork>)
                }) as _
            }),
            verify: Arc::new(move |shed| {
                let mut runner = VerifyRunner::new(target.clone(), &verify)?;
                runner.shedding(Box::new(ShedReader::new(shed)));
                say_if_unpinned("verify", runner.pin_current_thread());
                Ok(Box::new(move |work: VerifyWork| runner.run(work)) as Run<VerifyWork>)
            }),
        }
    }
}

fn say_if_unpinned(lane: &str, pinned: bool) {
    if !pinned {
        tracing::warn!(lane, "the lane's thread cannot be pinned to its core; it may be slower");
    }
}
