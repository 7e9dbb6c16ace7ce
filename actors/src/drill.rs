//! Faults made on purpose, so that it can be seen what clients notice of them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use faser_engine::EngineConfig;
use faser_kernels::collective::GroupWays;
use faser_kernels::{Collective, CollectiveError, HostCollective};

use crate::device::DeviceSpec;
use crate::error::ServiceError;
use crate::gpu_actor::{DeviceBuild, DeviceFactory};
use crate::lane::{Build, Run, Work};

/// A fault of one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drill {
    /// The replica, counted from 0.
    pub replica: usize,
    /// What happens there.
    pub fault: DrillFault,
}

/// What is to go wrong, and when. Moments are counted over all devices that a replica ever has: what happened once does not happen again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DrillFault {
    /// The rank panics in the middle of a pass, at its sum over the group of this number; alone, in front of the verify pass of this number.
    Panic {
        /// Counted from 0.
        rank: usize,
        /// Counted from 0.
        at: usize,
    },
    /// The same, but the rank hangs.
    Hang {
        /// Counted from 0.
        rank: usize,
        /// Counted from 0.
        at: usize,
        /// For so long.
        lasting: Duration,
    },
    /// The device cannot be built, the time of this number; the first build, at the start, is 0.
    Build {
        /// Counted from 0.
        at: usize,
    },
}

impl DrillFault {
    /// What a rank suffers, and at which moment.
    fn of_rank(&self, wanted: usize) -> Option<(usize, Option<Duration>)> {
        match *self {
            DrillFault::Panic { rank, at } if rank == wanted => Some((at, None)),
            DrillFault::Hang { rank, at, lasting } if rank == wanted => Some((at, Some(lasting))),
            _ => None,
        }
    }
}

/// How to make the lanes of a device that has these faults.
pub(crate) fn factory(device: &DeviceSpec, engine: &EngineConfig, faults: Vec<DrillFault>) -> DeviceFactory {
    if faults.is_empty() {
        return device.factory(engine);
    }
    let ranks = device.ranks().0;
    let sufferers: Vec<Sufferer> = (0..ranks).map(|rank| Sufferer::new(rank, &faults)).collect();
    let (device, engine, builds) = (device.clone(), engine.clone(), AtomicUsize::new(0));
    Arc::new(move || {
        let at = builds.fetch_add(1, Ordering::Relaxed);
        if faults.contains(&DrillFault::Build { at }) {
            return Err(ServiceError::Lane { lane: "verify", reason: format!("drill: build {at} fails") });
        }
        match (&device, &sufferers[..]) {
            (DeviceSpec::Cpu(cpu), [_, _, ..]) => cpu.build_in(&engine, &|rank, ways| {
                let sufferer = sufferers[rank].clone();
                disturbed(&ways, move || sufferer.suffer())
            }),
            _ => {
                let build = device.factory(&engine)()?;
                let sufferer = sufferers[0].clone();
                let verify = before_each(&build.verify, move || sufferer.suffer());
                Ok(DeviceBuild { verify, ..build })
            }
        }
    })
}

/// One rank, over all devices.
#[derive(Clone)]
struct Sufferer {
    rank: usize,
    moments: Arc<[(usize, Option<Duration>)]>,
    passed: Arc<AtomicUsize>,
}

impl Sufferer {
    fn new(rank: usize, faults: &[DrillFault]) -> Sufferer {
        let moments = faults.iter().filter_map(|fault| fault.of_rank(rank)).collect();
        Sufferer { rank, moments, passed: Arc::default() }
    }

    fn suffer(&self) {
        let now = self.passed.fetch_add(1, Ordering::Relaxed);
        for (_, lasting) in self.moments.iter().filter(|(at, _)| *at == now) {
            match lasting {
                Some(lasting) => std::thread::sleep(*lasting),
                None => panic!("drill: rank {} panics at {now}", self.rank),
            }
        }
    }
}

/// A rank's ways to its group, on which something happens before each sum: in the middle of a pass.
pub(crate) fn disturbed(ways: &GroupWays, disturb: impl Fn() + Clone + Send + Sync + 'static) -> GroupWays {
    let on = |way: &Arc<dyn HostCollective>| -> Arc<dyn HostCollective> {
        Arc::new(Disturbed { way: way.clone(), disturb: disturb.clone() })
    };
    GroupWays { group: on(&ways.group), stage: on(&ways.stage) }
}

struct Disturbed<F> {
    way: Arc<dyn HostCollective>,
    disturb: F,
}

impl<F: Fn() + Send + Sync> Collective for Disturbed<F> {
    fn rank(&self) -> usize {
        self.way.rank()
    }

    fn ranks(&self) -> usize {
        self.way.ranks()
    }

    fn all_reduce_sum(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        (self.disturb)();
        self.way.all_reduce_sum(values)
    }

    fn all_gather(&self, own: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        self.way.all_gather(own, all)
    }

    fn abort(&self, why: &str) {
        self.way.abort(why);
    }
}

impl<F: Fn() + Send + Sync> HostCollective for Disturbed<F> {
    fn broadcast(&self, root: usize, to: Range<usize>, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.way.broadcast(root, to, values)
    }
}

/// Does something before each plan of a lane.
pub(crate) fn before_each<W: Work>(
    build: &Build<W>,
    hook: impl Fn() + Clone + Send + Sync + 'static,
) -> Build<W> {
    let build = build.clone();
    Arc::new(move |cancels| {
        let (mut run, hook) = (build(cancels)?, hook.clone());
        Ok(Box::new(move |work: W| {
            hook();
            run(work)
        }) as Run<W>)
    })
}
