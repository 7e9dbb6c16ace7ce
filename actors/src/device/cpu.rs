//! Lanes on cores of this host.

use std::fmt;
use std::sync::Arc;

use faser_engine::EngineConfig;
use faser_kernels::Isa;
use faser_models::Model;
use faser_topology::{LanePair, Partition};

use crate::gpu_actor::DeviceBuild;
use crate::lane::Run;
use crate::runner::{DraftRunner, DraftWork, RunnerSpec, VerifyRunner, VerifyWork};
use crate::shed::ShedReader;
use crate::spec::PassLimits;

/// A pair on cores of this host.
#[derive(Clone)]
pub struct CpuSpec {
    /// The target model.
    pub target: Arc<Model>,
    /// The draft model, of the same vocabulary; without one nobody speculates.
    pub draft: Option<Arc<Model>>,
    /// The cores of both lanes on each partition, all of them first.
    pub partitions: Vec<LanePair>,
    /// The instruction set of the kernels.
    pub isa: Isa,
}

impl fmt::Debug for CpuSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuSpec")
            .field("partitions", &self.partitions)
            .field("isa", &self.isa)
            .finish_non_exhaustive()
    }
}

impl CpuSpec {
    pub(super) fn build(&self, engine: &EngineConfig) -> DeviceBuild {
        let limits = PassLimits::of(engine);
        let runner_spec = |lane: fn(&LanePair) -> &Partition, blocks, logit_rows| RunnerSpec {
            partitions: self.partitions.iter().map(|pair| lane(pair).clone()).collect(),
            isa: self.isa,
            blocks,
            block_size: engine.block_size,
            max_rows: limits.rows,
            max_logit_rows: logit_rows,
        };
        let verify = runner_spec(|pair| &pair.verify, engine.target_blocks, limits.verify_logit_rows);
        let target = self.target.clone();
        let draft_spec = runner_spec(|pair| &pair.draft, engine.draft_blocks, limits.draft_logit_rows);
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
