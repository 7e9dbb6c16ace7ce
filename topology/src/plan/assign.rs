//! Which devices the ranks of each replica are on: those that are joined best.

use super::{DeviceId, DraftPlace, PlanDevices, PlanRequest, Problem};
use crate::{Share, Topology};

/// A rank before its bytes are known.
pub(super) struct RankSlot {
    pub(super) device: DeviceId,
    pub(super) target: Option<Share>,
    pub(super) draft: Option<Share>,
}

/// The ranks of each replica.
pub(super) fn slots(machine: &Topology, request: &PlanRequest<'_>) -> Result<Vec<Vec<RankSlot>>, Problem> {
    let draft_ranks = if request.draft.is_some() { request.draft_ranks } else { 0 };
    check(request, draft_ranks)?;
    let (together, apart) = match request.draft_place {
        DraftPlace::Own => (request.target_ranks, draft_ranks),
        DraftPlace::First => (request.target_ranks.max(draft_ranks), 0),
        DraftPlace::Replicated => (request.target_ranks, 0),
    };
    let devices: Vec<Vec<DeviceId>> = match &request.devices {
        PlanDevices::Cpu { .. } => vec![vec![DeviceId::Cpu; together]; request.replicas],
        PlanDevices::Gpus { usable, .. } => {
            let needed = request.replicas * (together + apart);
            if needed > usable.len() {
                return Err(Problem::Devices { needed, there: usable.len(), ranks: together + apart });
            }
            let mut free = usable.clone();
            let mut groups: Vec<Vec<usize>> = (0..request.replicas)
                .map(|_| joined_best(machine, &mut free, Vec::new(), together))
                .collect();
            for group in &mut groups {
                let own = joined_best(machine, &mut free, Vec::new(), apart);
                group.extend(own);
            }
            groups.into_iter().map(|group| group.into_iter().map(DeviceId::Gpu).collect()).collect()
        }
    };
    let slot = |rank: usize, device: DeviceId| {
        let target =
            (rank < request.target_ranks).then(|| request.target.whole.share(rank, request.target_ranks));
        let draft = request.draft.and_then(|draft| match request.draft_place {
            DraftPlace::Replicated => Some(draft.whole.share(0, 1)),
            DraftPlace::First => (rank < draft_ranks).then(|| draft.whole.share(rank, draft_ranks)),
            DraftPlace::Own => {
                let own = rank.checked_sub(request.target_ranks)?;
                Some(draft.whole.share(own, draft_ranks))
            }
        });
        RankSlot { device, target, draft }
    };
    let replica = |devices: Vec<DeviceId>| {
        devices.into_iter().enumerate().map(|(rank, device)| slot(rank, device)).collect()
    };
    Ok(devices.into_iter().map(replica).collect())
}

fn check(request: &PlanRequest<'_>, draft_ranks: usize) -> Result<(), Problem> {
    let asked = |text: String| Err(Problem::Asked(text));
    if request.replicas == 0 {
        return asked("`device.replicas` must be at least 1".to_owned());
    }
    let split = |model: &str, whole: &crate::Divisible, ranks, key: &str| {
        let fitting = || whole.ranks(64).map(|ranks| ranks.to_string()).collect::<Vec<_>>().join(", ");
        let why =
            |why| Problem::Asked(format!("the {model} cannot be split: {why}: `{key}` can be {}", fitting()));
        whole.check(ranks).map_err(why)
    };
    split("target", request.target.whole, request.target_ranks, "device.tensor_parallel")?;
    if let Some(draft) = request.draft {
        split("draft", draft.whole, draft_ranks, "device.draft_tensor_parallel")?;
        if request.draft_place == DraftPlace::Replicated && draft_ranks > 1 {
            return asked(
                "`device.draft_placement: replicated` is a whole draft on every rank: leave out `device.draft_tensor_parallel`"
                    .to_owned(),
            );
        }
        if request.draft_place == DraftPlace::Own && matches!(request.devices, PlanDevices::Cpu { .. }) {
            return asked("`device.draft_placement: own` is for GPUs: leave it out on the CPU".to_owned());
        }
    }
    Ok(())
}

/// Takes `count` devices: the lowest that is free, and then always that whose worst link to those taken is best.
fn joined_best(machine: &Topology, free: &mut Vec<usize>, mut taken: Vec<usize>, count: usize) -> Vec<usize> {
    while taken.len() < count {
        let worst = |candidate: usize| {
            let links = taken.iter().filter_map(|&other| machine.link(candidate, other));
            links.map(|link| link.bytes_per_s).fold(f64::INFINITY, f64::min)
        };
        // Of equals the first.
        let best = (0..free.len())
            .reduce(|best, place| if worst(free[place]) > worst(free[best]) { place } else { best });
        let Some(best) = best else { break };
        taken.push(free.remove(best));
    }
    taken.sort_unstable();
    taken
}
