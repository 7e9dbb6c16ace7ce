//! What of each device's memory a plan takes, and how many tokens of KV are left room for.

use std::collections::BTreeMap;

use super::assign::{RankSlot, slots};
use super::{
    DeviceId, DeviceLoad, DraftPlace, Lanes, Plan, PlanDevices, PlanModel, PlanRequest, Problem, Rank,
    Replica, Shard, ShareBytes,
};
use crate::gpu_placement::GpuDevice;
use crate::place::{BlockSizes, check, partitions};
use crate::{LanePair, ModelFootprint, Partition, Topology, rank_partitions};

/// What the shards of all replicas on one device add up to.
#[derive(Clone, Debug, Default)]
struct Sum {
    target_weight_bytes: u64,
    draft_weight_bytes: u64,
    workspace_bytes: u64,
    /// KV of one token of every replica that is there: of its target, and of its draft.
    token_bytes: (u64, u64),
    /// Replicas that are there.
    replicas: u64,
}

/// A plan without warnings.
pub(super) fn fit(machine: &Topology, request: &PlanRequest<'_>) -> Result<Plan, Problem> {
    let models = [Some(("target", request.target)), request.draft.map(|draft| ("draft", draft))];
    for (_, model) in models.into_iter().flatten() {
        check_context(request, &model)?;
    }
    let slots = slots(machine, request)?;
    let sums = sums(request, &slots);
    let mut blocks = usize::MAX;
    for (&device, sum) in &sums {
        blocks = blocks.min(blocks_on(machine, request, device, sum)?);
    }
    let lanes = lanes(machine, request, &slots)?;
    let replicas: Vec<Replica> = slots
        .into_iter()
        .zip(lanes)
        .map(|(slots, lanes)| replica(machine, request, slots, lanes, blocks))
        .collect();
    let devices = sums.into_iter().map(|(device, sum)| DeviceLoad {
        device,
        name: name(machine, device),
        memory_bytes: memory_bytes(machine, device),
        budget_bytes: budget_bytes(machine, request, device),
        target_weight_bytes: sum.target_weight_bytes,
        draft_weight_bytes: sum.draft_weight_bytes,
        kv_bytes: sizes(request, sum.token_bytes).bytes(blocks as u64),
        workspace_bytes: sum.workspace_bytes,
    });
    Ok(Plan { replicas, devices: devices.collect(), warnings: Vec::new() })
}

fn check_context(request: &PlanRequest<'_>, model: &PlanModel<'_>) -> Result<(), Problem> {
    let bytes = (model.bytes)(&model.whole.share(0, 1), request.dtype);
    let footprint = ModelFootprint {
        weight_bytes: bytes.weight_bytes,
        kv_bytes_per_token: bytes.kv_bytes_per_token,
        max_context: model.max_context,
        workspace_bytes: bytes.workspace_bytes,
        copies: 1,
    };
    check(&footprint, None, &request.kv).map_err(|error| Problem::Asked(error.to_string()))
}

fn sums(request: &PlanRequest<'_>, replicas: &[Vec<RankSlot>]) -> BTreeMap<DeviceId, Sum> {
    let mut sums: BTreeMap<DeviceId, Sum> = BTreeMap::new();
    for slots in replicas {
        for slot in slots {
            let sum = sums.entry(slot.device).or_default();
            let (target, draft) = (target_bytes(request, slot), draft_bytes(request, slot));
            sum.target_weight_bytes += target.map_or(0, |bytes| bytes.weight_bytes);
            sum.draft_weight_bytes += draft.map_or(0, |bytes| bytes.weight_bytes);
            sum.workspace_bytes +=
                [target, draft].into_iter().flatten().map(|bytes| bytes.workspace_bytes).sum::<u64>();
            sum.token_bytes.0 += target.map_or(0, |bytes| bytes.kv_bytes_per_token);
            sum.token_bytes.1 += draft.map_or(0, |bytes| bytes.kv_bytes_per_token);
        }
        // Once for each replica, however many of its ranks are there.
        let mut devices: Vec<DeviceId> = slots.iter().map(|slot| slot.device).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            sums.entry(device).or_default().replicas += 1;
        }
    }
    sums
}

fn target_bytes(request: &PlanRequest<'_>, slot: &RankSlot) -> Option<ShareBytes> {
    slot.target.as_ref().map(|share| (request.target.bytes)(share, request.dtype))
}

fn draft_bytes(request: &PlanRequest<'_>, slot: &RankSlot) -> Option<ShareBytes> {
    slot.draft.as_ref().zip(request.draft).map(|(share, draft)| (draft.bytes)(share, request.dtype))
}

/// What KV blocks take where a token of target and draft takes so many bytes.
fn sizes(request: &PlanRequest<'_>, token_bytes: (u64, u64)) -> BlockSizes {
    let replicated = request.draft_place == DraftPlace::Replicated;
    BlockSizes::new(&request.kv, token_bytes, if replicated { request.target_ranks } else { 1 })
}

/// KV blocks of each replica that the device has room for.
fn blocks_on(
    machine: &Topology,
    request: &PlanRequest<'_>,
    device: DeviceId,
    sum: &Sum,
) -> Result<usize, Problem> {
    let kv = &request.kv;
    let budget_bytes = budget_bytes(machine, request, device);
    let needed_bytes = sum.target_weight_bytes + sum.draft_weight_bytes + sum.workspace_bytes;
    let left_bytes = budget_bytes.checked_sub(needed_bytes).ok_or(Problem::Weights {
        device,
        needed_bytes,
        budget_bytes,
    })?;
    // Of every replica.
    let sizes = sizes(request, sum.token_bytes);
    let per_sequence = sizes.per_sequence;
    let kv_bytes = match kv.memory_bytes {
        Some(asked_bytes) if asked_bytes > left_bytes => {
            return Err(Problem::KvMemory { device, asked_bytes, left_bytes });
        }
        Some(asked_bytes) => asked_bytes,
        None if device == DeviceId::Cpu => {
            // Memory of the host is wanted by others too.
            sizes.bytes(per_sequence.saturating_mul(kv.max_running as u64)).min(left_bytes / 2)
        }
        None => left_bytes,
    };
    let blocks = sizes.fitting(kv_bytes);
    if blocks < per_sequence {
        let of_one = |bytes: u64| bytes / sum.replicas.max(1);
        return Err(Problem::Context {
            device,
            max_context: kv.max_context,
            needed_bytes: of_one(sizes.bytes(per_sequence)),
            kv_bytes: of_one(kv_bytes),
        });
    }
    Ok(blocks as usize)
}

fn replica(
    machine: &Topology,
    request: &PlanRequest<'_>,
    slots: Vec<RankSlot>,
    lanes: Vec<Vec<Lanes>>,
    kv_blocks: usize,
) -> Replica {
    let kv_tokens = kv_blocks * request.kv.block_size;
    let shard = |share, bytes: ShareBytes, kv: (u64, u64)| Shard {
        share,
        weight_bytes: bytes.weight_bytes,
        kv_bytes: sizes(request, kv).bytes(kv_blocks as u64),
        workspace_bytes: bytes.workspace_bytes,
    };
    let rank = |(slot, partitions): (RankSlot, Vec<Lanes>)| {
        let (target, draft) = (target_bytes(request, &slot), draft_bytes(request, &slot));
        Rank {
            device: slot.device,
            target: slot
                .target
                .zip(target)
                .map(|(share, own)| shard(share, own, (own.kv_bytes_per_token, 0))),
            draft: slot.draft.zip(draft).map(|(share, own)| shard(share, own, (0, own.kv_bytes_per_token))),
            partitions,
        }
    };
    let ranks: Vec<Rank> = slots.into_iter().zip(lanes).map(rank).collect();
    let group = |of: fn(&Rank) -> Option<&Shard>| {
        let in_group = |rank: &&Rank| of(rank).is_some_and(|shard| shard.share.ranks > 1);
        let gpu = |rank: &Rank| match rank.device {
            DeviceId::Gpu(number) => Some(number),
            DeviceId::Cpu => None,
        };
        let gpus: Vec<usize> = ranks.iter().filter(in_group).filter_map(gpu).collect();
        machine.slowest(&gpus)
    };
    let links = [group(|rank| rank.target.as_ref()), group(|rank| rank.draft.as_ref())];
    let slowest_link =
        links.into_iter().flatten().min_by(|a, b| a.link.bytes_per_s.total_cmp(&b.link.bytes_per_s));
    let sequences = kv_blocks / request.kv.max_context.div_ceil(request.kv.block_size).max(1);
    Replica { ranks, kv_blocks, kv_tokens, sequences, slowest_link }
}

/// How the lanes of each rank of each replica can share its device.
fn lanes(
    machine: &Topology,
    request: &PlanRequest<'_>,
    replicas: &[Vec<RankSlot>],
) -> Result<Vec<Vec<Vec<Lanes>>>, Problem> {
    let asked = |error: crate::TopologyError| Problem::Asked(error.to_string());
    match &request.devices {
        PlanDevices::Cpu { threads } => {
            let all = machine.host.first(threads.unwrap_or(machine.host.cores.len())).map_err(asked)?;
            let own: Vec<Partition> = all.split(replicas.len());
            let draft_ranks =
                |slots: &[RankSlot]| slots.iter().filter(|slot| slot.draft.is_some()).count().max(1);
            let of = |(cores, slots): (&Partition, &Vec<RankSlot>)| {
                let pairs = partitions(cores, &machine.host.nodes, request.draft.is_some());
                let ranks = rank_partitions(&pairs, request.target_ranks, draft_ranks(slots));
                let used = |(own, slot): (Vec<LanePair>, &RankSlot)| {
                    let of =
                        |cores: Partition, used| if used { cores } else { Partition { cores: Vec::new() } };
                    let both = |pair: LanePair| LanePair {
                        draft: of(pair.draft, slot.draft.is_some()),
                        verify: of(pair.verify, slot.target.is_some()),
                    };
                    own.into_iter().map(|pair| Lanes::Cores(both(pair))).collect()
                };
                ranks.into_iter().zip(slots).map(used).collect()
            };
            Ok(own.iter().zip(replicas).map(of).collect())
        }
        PlanDevices::Gpus { draft_sms, utilization, .. } => {
            let of = |slot: &RankSlot| {
                let memory_bytes = memory_bytes(machine, slot.device);
                let gpu =
                    GpuDevice { sms: sms(machine, slot.device), memory_bytes, utilization: *utilization };
                let all = gpu.sms;
                let (draft, verify) = (slot.draft.is_some(), slot.target.is_some());
                let whole = |used: bool| if used { all } else { 0 };
                let mut lanes = vec![Lanes::Sms { draft_sms: whole(draft), verify_sms: whole(verify) }];
                if draft && verify {
                    let own = draft_sms.as_ref().map(|own| gpu.splits(own)).transpose().map_err(asked)?;
                    let splits = own.unwrap_or_else(|| gpu.default_splits());
                    let split = |draft_sms: u32| match all - draft_sms {
                        0 => Lanes::Sms { draft_sms, verify_sms: all },
                        verify_sms => Lanes::Sms { draft_sms, verify_sms },
                    };
                    lanes.extend(splits.into_iter().map(split));
                }
                Ok(lanes)
            };
            replicas.iter().map(|slots| slots.iter().map(of).collect()).collect()
        }
    }
}

fn gpu(machine: &Topology, device: DeviceId) -> Option<&crate::Gpu> {
    match device {
        DeviceId::Cpu => None,
        DeviceId::Gpu(number) => machine.gpus.get(number),
    }
}

fn name(machine: &Topology, device: DeviceId) -> String {
    gpu(machine, device).map_or(&machine.host.name, |gpu| &gpu.name).clone()
}

fn memory_bytes(machine: &Topology, device: DeviceId) -> u64 {
    gpu(machine, device).map_or(machine.host.memory_bytes, |gpu| gpu.memory_bytes)
}

fn sms(machine: &Topology, device: DeviceId) -> u32 {
    gpu(machine, device).map_or(0, |gpu| gpu.sms)
}

fn budget_bytes(machine: &Topology, request: &PlanRequest<'_>, device: DeviceId) -> u64 {
    let memory_bytes = memory_bytes(machine, device);
    match &request.devices {
        PlanDevices::Cpu { .. } => memory_bytes,
        PlanDevices::Gpus { utilization, .. } => {
            GpuDevice { sms: 0, memory_bytes, utilization: *utilization }.budget_bytes()
        }
    }
}
