//! What a plan that fits does not do well.

use std::collections::BTreeSet;

use super::{DeviceId, DraftPlace, Lanes, Plan, PlanDevices, PlanRequest, Replica};
use crate::{Joined, LinkKind, Topology};

/// A rank with so much less room for KV than the others that it is worth a word.
const UNEVEN: f64 = 0.1;

/// All of them, the same ones of several replicas once.
pub(super) fn of(machine: &Topology, request: &PlanRequest<'_>, plan: &Plan) -> Vec<String> {
    let mut warnings = Vec::new();
    for (number, replica) in plan.replicas.iter().enumerate() {
        warnings.extend(poor_link(machine, request, number, replica));
        warnings.extend(shared_cores(number, replica));
    }
    warnings.extend(replicated_kv(request));
    warnings.extend(uneven(request, plan));
    warnings.extend(few_sequences(request, plan));
    warnings.extend(idle(machine, request, plan));
    warnings
}

fn poor_link(
    machine: &Topology,
    request: &PlanRequest<'_>,
    number: usize,
    replica: &Replica,
) -> Option<String> {
    let Joined { gpus: (a, b), link } = replica.slowest_link?;
    if link.kind == LinkKind::Nvlink {
        return None;
    }
    let rate = link.bytes_per_s / 1e9;
    let mut text = format!(
        "replica {number}: cuda:{a} and cuda:{b} are joined by {} ({rate:.0} GB/s), and their group sums over it twice in every layer",
        link.kind
    );
    let better = machine.links.iter().filter(|joined| joined.link.kind == LinkKind::Nvlink);
    let fast: BTreeSet<usize> = better.flat_map(|joined| [joined.gpus.0, joined.gpus.1]).collect();
    if fast.is_empty() {
        text += if request.replicas > 1 || machine.gpus.len() > request.target_ranks {
            "; a group of fewer GPUs sums less often or not at all"
        } else {
            ""
        };
    } else {
        let list = fast.iter().map(|gpu| format!("cuda:{gpu}")).collect::<Vec<_>>().join(", ");
        text += &format!("; NVLink joins {list}: split over no more than it joins");
    }
    Some(text)
}

fn shared_cores(number: usize, replica: &Replica) -> Option<String> {
    let cores = |rank: &super::Rank| match rank.partitions.first() {
        Some(Lanes::Cores(pair)) => pair.verify.cores.clone(),
        _ => Vec::new(),
    };
    let all: Vec<usize> = replica.ranks.iter().flat_map(cores).collect();
    let distinct: BTreeSet<usize> = all.iter().copied().collect();
    (distinct.len() < all.len()).then(|| {
        let (ranks, cores) = (replica.ranks.len(), distinct.len());
        format!("replica {number}: {ranks} ranks share {cores} cores: right, and slow")
    })
}

fn replicated_kv(request: &PlanRequest<'_>) -> Option<String> {
    let (kv_heads, ranks) = (request.target.whole.kv_heads, request.target_ranks);
    (ranks > kv_heads).then(|| {
        let times = ranks / kv_heads.max(1);
        format!("the target's {kv_heads} KV heads are fewer than its {ranks} ranks: {times} ranks hold each, and KV takes {times} times the memory")
    })
}

/// Pools are as large as the fullest device lets them be.
fn uneven(request: &PlanRequest<'_>, plan: &Plan) -> Option<String> {
    if !matches!(request.devices, PlanDevices::Gpus { .. }) || request.kv.memory_bytes.is_some() {
        return None;
    }
    let free = |load: &&super::DeviceLoad| load.budget_bytes - load.used_bytes();
    let with_target = || plan.devices.iter().filter(|load| load.target_weight_bytes > 0);
    let (emptiest, fullest) = (with_target().rev().max_by_key(free)?, with_target().min_by_key(free)?);
    let unused = free(&emptiest);
    if (unused as f64) < UNEVEN * emptiest.budget_bytes as f64 {
        return None;
    }
    let more = match request.draft_place {
        DraftPlace::First if request.draft.is_some() => ": the draft is on the first ranks alone",
        _ => "",
    };
    let gib = unused as f64 / f64::from(1 << 30);
    Some(format!(
        "KV pools are as large as {} has room for, which leaves {gib:.1} GiB of {} unused{more}",
        fullest.device, emptiest.device
    ))
}

fn few_sequences(request: &PlanRequest<'_>, plan: &Plan) -> Option<String> {
    let fit = plan.replicas.iter().map(|replica| replica.sequences).min()?;
    let (running, context) = (request.kv.max_running, request.kv.max_context);
    (fit < running).then(|| {
        format!("there is room for {fit} x {context} tokens, and scheduler.max_running is {running}: of long sequences some will be preempted and recomputed")
    })
}

fn idle(machine: &Topology, request: &PlanRequest<'_>, plan: &Plan) -> Option<String> {
    let PlanDevices::Gpus { usable, .. } = &request.devices else {
        return (!machine.gpus.is_empty()).then(|| "the GPUs are not used".to_owned());
    };
    let used = |gpu: &usize| plan.devices.iter().any(|load| load.device == DeviceId::Gpu(*gpu));
    let idle: Vec<String> = usable.iter().filter(|gpu| !used(gpu)).map(|gpu| format!("cuda:{gpu}")).collect();
    let of_one = plan.replicas.first()?.ranks.len();
    let more = match idle.len() / of_one {
        0 => String::new(),
        more => format!(": room for device.replicas: {}", plan.replicas.len() + more),
    };
    (!idle.is_empty()).then(|| format!("{} not used{more}", idle.join(", ")))
}
