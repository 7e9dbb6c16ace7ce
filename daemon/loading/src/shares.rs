//! What each replica, and each pair, has of a host.

use faser_config::Config;
use faser_config::sizes::written;
use faser_topology::{CpuDevice, TopologyError};

use crate::error::LoadError;

/// The host in as many parts as there are replicas: as many cores each, node by node, and the same share of the memory that one copy of the
/// weights leaves, beside those. `threads` are for all together (default: every core). With fewer cores than replicas some share one.
///
/// # Errors
/// There are not so many cores.
pub(crate) fn shares(
    host: &CpuDevice,
    threads: Option<usize>,
    replicas: usize,
    weight_bytes: u64,
) -> Result<Vec<CpuDevice>, TopologyError> {
    let cores = host.first(threads.unwrap_or(host.cores.len()))?.cores;
    let each = (cores.len() / replicas).max(1);
    if cores.len() < replicas {
        tracing::warn!(
            cores = cores.len(),
            replicas,
            "there are fewer cores than replicas: some share a core, which is slow"
        );
    } else if !cores.len().is_multiple_of(replicas) {
        tracing::warn!(
            cores = cores.len(),
            replicas,
            each,
            "the cores cannot be allocated evenly: some are idle"
        );
    }
    let memory_bytes = if replicas == 1 {
        host.memory_bytes
    } else {
        let left_bytes = host.memory_bytes.saturating_sub(weight_bytes);
        host.memory_bytes.min(weight_bytes) + left_bytes / replicas as u64
    };
    let share = |replica: usize| {
        let mut own: Vec<usize> = cores.iter().copied().cycle().skip(replica * each).take(each).collect();
        own.sort_unstable();
        let mut nodes = host.nodes.clone();
        for node in &mut nodes {
            node.cores.retain(|core| own.contains(core));
        }
        nodes.retain(|node| !node.cores.is_empty());
        CpuDevice { name: host.name.clone(), cores: own, nodes, memory_bytes }
    };
    Ok((0..replicas).map(share).collect())
}

/// What is left of a host's memory beside past outputs, which each replica keeps for itself.
///
/// # Errors
/// They alone take more.
pub(crate) fn beside_past_outputs(config: &Config, memory_bytes: u64) -> Result<u64, LoadError> {
    let (each_bytes, replicas) = (config.suffix_bytes, config.device.replicas);
    let left_bytes = memory_bytes.checked_sub(past_outputs_bytes(config));
    left_bytes.ok_or(LoadError::PastOutputs { each_bytes, replicas, memory_bytes })
}

/// Bytes of past outputs, of all replicas.
pub(crate) fn past_outputs_bytes(config: &Config) -> u64 {
    config.suffix_bytes.saturating_mul(config.device.replicas as u64)
}

/// What is to be said of the memory that past outputs take, if any are kept.
pub(crate) fn of_past_outputs(config: &Config) -> Option<String> {
    let taken = || {
        let (all, replicas) = (written(past_outputs_bytes(config)), config.device.replicas);
        let each = if replicas > 1 { format!(", {replicas} replicas") } else { String::new() };
        format!("past outputs take {all} of the host's memory (`speculation.suffix_memory`{each})")
    };
    (config.suffix_bytes > 0).then(taken)
}

/// What a pair takes of a host's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Need {
    /// Weights, workspaces and past outputs.
    pub(crate) fixed_bytes: u64,
    /// KV, as far as the config says how much.
    pub(crate) kv_bytes: Option<u64>,
}

/// The memory of each pair of several, in bytes: what it needs, and if nobody said how much KV, an equal part of what is left beside the needs
/// of all. Of too little memory there is less for each than it needs.
pub(crate) fn memory_of_pairs(memory_bytes: u64, needs: &[Need]) -> Vec<u64> {
    let total = |need: &Need| need.fixed_bytes.saturating_add(need.kv_bytes.unwrap_or(0));
    let all = needs.iter().map(total).fold(0, u64::saturating_add);
    let left = memory_bytes.saturating_sub(all);
    let unsized_pairs = needs.iter().filter(|need| need.kv_bytes.is_none()).count() as u64;
    let share = |need: &Need| {
        let own = memory_bytes.saturating_sub(all - total(need).min(all));
        match need.kv_bytes {
            Some(_) => own,
            None => own.saturating_sub(left) + left / unsized_pairs,
        }
    };
    needs.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use faser_topology::Node;

    /// Two nodes of four cores, numbered in turns.
    fn host() -> CpuDevice {
        let node = |number: usize| Node { number, cores: (0..4).map(|i| number + 2 * i).collect() };
        CpuDevice {
            name: "test".into(),
            cores: (0..8).collect(),
            nodes: vec![node(0), node(1)],
            memory_bytes: 1000,
        }
    }

    fn cores(replicas: usize, threads: Option<usize>) -> Vec<Vec<usize>> {
        shares(&host(), threads, replicas, 0).unwrap().into_iter().map(|share| share.cores).collect()
    }

    #[test]
    fn cores_are_allocated_node_by_node_and_evenly() {
        assert_eq!(cores(1, None), [(0..8).collect::<Vec<_>>()]);
        assert_eq!(cores(2, None), [[0, 2, 4, 6], [1, 3, 5, 7]]);
        assert_eq!(cores(3, None), [[0, 2], [4, 6], [1, 3]]);
        assert_eq!(cores(2, Some(3)), [[0], [2]]);
        assert_eq!(cores(3, Some(2)), [[0], [2], [0]]);
        let halves = shares(&host(), None, 2, 0).unwrap();
        assert_eq!(halves[1].nodes, [Node { number: 1, cores: vec![1, 3, 5, 7] }]);
        assert!(shares(&host(), Some(9), 2, 0).is_err());
    }

    #[test]
    fn pairs_have_what_they_need_and_equal_parts_of_the_rest() {
        let need = |fixed_bytes, kv_bytes| Need { fixed_bytes, kv_bytes };
        assert_eq!(memory_of_pairs(1000, &[need(300, None)]), [1000]);
        assert_eq!(memory_of_pairs(1000, &[need(300, None), need(100, None)]), [600, 400]);
        let sized = [need(300, None), need(100, Some(200)), need(100, None)];
        assert_eq!(
            memory_of_pairs(1000, &sized),
            [450, 600, 250],
            "who says how much is measured against all of the rest"
        );
        // Too little for all of them is too little for one at least.
        assert_eq!(memory_of_pairs(500, &[need(400, None), need(200, None)]), [300, 100]);
    }

    #[test]
    fn weights_are_there_once_and_what_is_left_is_allocated() {
        let bytes = |replicas, weights| shares(&host(), None, replicas, weights).unwrap()[0].memory_bytes;
        assert_eq!((bytes(1, 400), bytes(2, 400), bytes(4, 200)), (1000, 700, 400));
        // Too small for one is too small for each.
        assert_eq!(bytes(2, 2000), 1000);
    }
}
