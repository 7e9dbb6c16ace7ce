//! The CPU device of this host, and partitions of its cores.

use crate::nodes::{self, Node};
use crate::{TopologyError, proc};
use serde::Serialize;
use std::path::Path;

const NODES: &str = "/sys/devices/system/node";

/// Cores and memory of this host that the process may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuDevice {
    /// What the processor calls itself.
    pub name: String,
    /// Numbers of the cores this process may run on, ascending; never empty.
    pub cores: Vec<usize>,
    /// The NUMA nodes of these cores, by number; empty if the system does not tell.
    pub nodes: Vec<Node>,
    /// Memory that can be had without swapping, in bytes, within the cgroup's limit.
    pub memory_bytes: u64,
}

/// The cores of one lane; the first is the lane's own thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Partition {
    /// Core numbers; never empty when made by [`CpuDevice`].
    pub cores: Vec<usize>,
}

impl CpuDevice {
    /// Reads affinity, memory and model name from `/proc`, NUMA nodes from `/sys`, and the limits of the cgroup (v1 or v2) if there
    /// is one.
    ///
    /// A CPU quota of a container (say 4 CPUs of 64) cuts the list of cores, to those of one node if that has as many: more threads
    /// than the quota only get throttled.
    ///
    /// # Errors
    /// If `/proc/self/status` or `/proc/meminfo` cannot be read or understood.
    pub fn discover() -> Result<CpuDevice, TopologyError> {
        let mut cores = proc::allowed_cores()?;
        let mut nodes = nodes::read(Path::new(NODES), &cores);
        if let Some(quota) = proc::cgroup_cpus() {
            (cores, nodes) = cut(&cores, nodes, quota.max(1));
        }
        let available = proc::available_memory_bytes()?;
        let memory_bytes = proc::cgroup_memory_bytes().map_or(available, |limit| limit.min(available));
        Ok(CpuDevice { name: proc::cpu_name(), cores, nodes, memory_bytes })
    }

    /// All cores, node by node.
    #[must_use]
    pub fn whole(&self) -> Partition {
        Partition { cores: nodes::choose(&self.cores, &self.nodes, self.cores.len()) }
    }

    /// `threads` cores: the first ones of the first node that has so many, else of as few nodes as can be, node by node.
    ///
    /// # Errors
    /// [`TopologyError::Threads`] for none, or for more than there are.
    pub fn first(&self, threads: usize) -> Result<Partition, TopologyError> {
        let available = self.cores.len();
        if threads == 0 || threads > available {
            return Err(TopologyError::Threads { asked: threads, available });
        }
        Ok(Partition { cores: nodes::choose(&self.cores, &self.nodes, threads) })
    }

    /// Numbers of the nodes on which the lanes of so many threads lie (default: every core), ascending: where memory should be that they
    /// read. Empty if nodes are not known, or there are not so many cores.
    #[must_use]
    pub fn nodes_of(&self, threads: Option<usize>) -> Vec<usize> {
        let Ok(lane) = self.first(threads.unwrap_or(self.cores.len())) else { return Vec::new() };
        let has = |node: &&Node| lane.cores.iter().any(|core| node.cores.contains(core));
        self.nodes.iter().filter(has).map(|node| node.number).collect()
    }
}

/// So many of the cores, and the nodes they are on.
fn cut(cores: &[usize], mut nodes: Vec<Node>, count: usize) -> (Vec<usize>, Vec<Node>) {
    let mut kept = nodes::choose(cores, &nodes, count.min(cores.len()));
    kept.sort_unstable();
    for node in &mut nodes {
        node.cores.retain(|core| kept.contains(core));
    }
    nodes.retain(|node| !node.cores.is_empty());
    (kept, nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_cores_and_memory() {
        let device = CpuDevice::discover().unwrap();
        assert!(!device.cores.is_empty());
        assert!(device.cores.is_sorted());
        assert!(device.memory_bytes > 64 << 20, "{device:?}");
        let mut whole = device.whole().cores;
        whole.sort_unstable();
        assert_eq!(whole, device.cores);
        let on_nodes: usize = device.nodes.iter().map(|node| node.cores.len()).sum();
        assert!(on_nodes == device.cores.len() || device.nodes.is_empty(), "{device:?}");
    }

    #[test]
    fn a_partition_takes_the_first_cores_and_no_more_than_there_are() {
        let device = CpuDevice { name: "test".into(), cores: vec![3, 5, 7], nodes: vec![], memory_bytes: 1 };
        assert_eq!(device.first(2).unwrap().cores, [3, 5]);
        assert_eq!(device.first(3).unwrap(), device.whole());
        for asked in [0, 4] {
            let refusal = device.first(asked).unwrap_err().to_string();
            assert!(refusal.contains("choose 1 to 3"), "{refusal}");
        }
    }

    /// Two nodes of three cores, numbered in turns.
    fn two_nodes() -> CpuDevice {
        let node = |number: usize| Node { number, cores: vec![number, number + 2, number + 4] };
        CpuDevice {
            name: "test".into(),
            cores: (0..6).collect(),
            nodes: vec![node(0), node(1)],
            memory_bytes: 1,
        }
    }

    #[test]
    fn a_device_says_which_nodes_its_lanes_are_on() {
        let device = two_nodes();
        assert_eq!(device.whole().cores, [0, 2, 4, 1, 3, 5]);
        assert_eq!(device.first(3).unwrap().cores, [0, 2, 4]);
        assert_eq!(device.nodes_of(Some(3)), [0]);
        assert_eq!(device.nodes_of(Some(4)), [0, 1]);
        assert_eq!(device.nodes_of(None), [0, 1]);
        assert_eq!(device.nodes_of(Some(7)), []);
    }

    #[test]
    fn a_quota_takes_cores_of_one_node_if_it_can() {
        let CpuDevice { cores, nodes, .. } = two_nodes();
        let (kept, on) = cut(&cores, nodes.clone(), 2);
        assert_eq!((kept, on), (vec![0, 2], vec![Node { number: 0, cores: vec![0, 2] }]));
        let (kept, on) = cut(&cores, nodes.clone(), 4);
        assert_eq!((kept, on[1].cores.clone()), (vec![0, 1, 2, 4], vec![1]));
        assert_eq!(cut(&cores, nodes.clone(), 64), (cores.clone(), nodes));
        assert_eq!(cut(&cores, Vec::new(), 2), (vec![0, 1], Vec::new()));
    }
}
