//! What a node behind the first has of the target, and how its ranks' lanes are made for a session.

use std::sync::Arc;

use faser_kernels::Isa;
use faser_kernels::cuda::Share;
use faser_models::{Model, Shard};
use faser_topology::Partition;

use crate::device::{CudaDevice, LanePasses, Open, opened_on_cores, opened_on_gpu};
use crate::error::ServiceError;
use crate::nodes::{NodeFacts, NodePlace, NodeSpec, RunLane, SessionLanes, SessionWays, SessionWork};
use crate::profile::follow_passes;
use crate::runner::{CpuLaneSpec, CudaLaneSpec, LaneBackend, MASK_PATIENCE, VerifyRunner};

/// What a node has of the target.
pub enum NodeTarget {
    /// On cores.
    Cpu {
        /// Its shards, rank after rank.
        shards: Vec<Arc<Model>>,
        /// Those of all ranks here.
        cores: Partition,
        /// The instruction set of the kernels.
        isa: Isa,
    },
    /// On GPUs, one for each rank here, and the first one's shard.
    Cuda {
        /// The GPUs.
        devices: Vec<CudaDevice>,
        /// Of the first.
        shard: Shard,
    },
}

impl NodeTarget {
    /// The node that has it, whose leader listens at `rendezvous`, host and port; `facts` are what it must have alike.
    pub fn node(self, place: NodePlace, rendezvous: String, facts: NodeFacts) -> NodeSpec {
        NodeSpec { place, rendezvous, target: Box::new(self), facts }
    }
}

impl SessionLanes for NodeTarget {
    fn shard(&self) -> Shard {
        match self {
            NodeTarget::Cpu { shards, .. } => shards[0].shard(),
            NodeTarget::Cuda { shard, .. } => *shard,
        }
    }

    fn lanes(&self, ways: SessionWays, work: &SessionWork) -> Result<Vec<RunLane>, ServiceError> {
        match (self, ways) {
            (NodeTarget::Cpu { shards, cores, isa }, SessionWays::Cores(ways)) => {
                let parts = shards.iter().zip(ways).zip(cores.split(shards.len()));
                let run = parts.map(|((model, way), cores)| {
                    let spec = cpu_lane(work, cores, *isa);
                    run_lane(opened_on_cores("verify", model.clone(), spec, Some(way)), work.clone())
                });
                Ok(run.collect())
            }
            (NodeTarget::Cuda { devices, .. }, SessionWays::Gpus(slots)) => {
                let run = devices.iter().zip(slots).map(|(device, slot)| {
                    let there = device.open(&mut |_| {})?;
                    let (partitions, sizes) = match work {
                        SessionWork::Serve(lane) => (lane.partitions, lane.cuda()),
                        SessionWork::Measure(lane) => (1, LanePasses::from(*lane).cuda()),
                    };
                    let shares = vec![Share::whole(&there.gpu); partitions];
                    let spec = CudaLaneSpec { shares, sizes, drafts: false, features: None };
                    Ok(run_lane(opened_on_gpu(there.target.clone(), spec, Some(slot)), work.clone()))
                });
                run.collect()
            }
            _ => Err(ServiceError::Contradiction("nodes on CPUs beside nodes on GPUs".to_owned())),
        }
    }
}

fn cpu_lane(work: &SessionWork, cores: Partition, isa: Isa) -> CpuLaneSpec {
    let (partitions, blocks, block_size, max_rows, max_logit_rows) = match work {
        SessionWork::Serve(lane) => {
            (lane.partitions, lane.blocks, lane.block_size, lane.max_rows, lane.max_logit_rows)
        }
        SessionWork::Measure(lane) => {
            let lane = LanePasses::from(*lane);
            (1, lane.blocks(), lane.block_size, lane.most_rows, lane.most_rows)
        }
    };
    let partitions = vec![cores; partitions];
    CpuLaneSpec { partitions, isa, blocks, block_size, max_rows, max_logit_rows, features: None }
}

/// Carries out a session's plans, or its timed passes.
fn run_lane<B: LaneBackend + 'static>(open: Open<B>, work: SessionWork) -> RunLane {
    Box::new(move |orders, built| {
        let backend = open()?;
        match work {
            SessionWork::Serve(_) => {
                let mut runner = VerifyRunner::new(backend, MASK_PATIENCE);
                let _ = built.send(());
                while let Ok(work) = orders.recv() {
                    drop(runner.run(Arc::unwrap_or_clone(work)));
                }
            }
            SessionWork::Measure(lane) => {
                let _ = built.send(());
                follow_passes(backend, lane.into());
            }
        }
        Ok(())
    })
}
