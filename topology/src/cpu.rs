//! The CPU device of this host, and partitions of its cores.

use crate::{TopologyError, proc};
use serde::Serialize;

/// Cores and memory of this host that the process may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CpuDevice {
    /// What the processor calls itself.
    pub name: String,
    /// Numbers of the cores this process may run on, ascending; never empty.
    pub cores: Vec<usize>,
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
    /// Reads affinity, memory and model name from `/proc`, and the limits of the cgroup (v1 or v2) if there is one.
    ///
    /// A CPU quota of a container (say 4 CPUs of 64) cuts the list of cores: more threads than
    /// the quota only get throttled.
    ///
    /// # Errors
    /// If `/proc/self/status` or `/proc/meminfo` cannot be read or understood.
    pub fn discover() -> Result<CpuDevice, TopologyError> {
        let mut cores = proc::allowed_cores()?;
        if let Some(quota) = proc::cgroup_cpus() {
            cores.truncate(quota.max(1));
        }
        let available = proc::available_memory_bytes()?;
        let memory_bytes = proc::cgroup_memory_bytes().map_or(available, |limit| limit.min(available));
        Ok(CpuDevice { name: proc::cpu_name(), cores, memory_bytes })
    }

    /// All cores.
    #[must_use]
    pub fn whole(&self) -> Partition {
        Partition { cores: self.cores.clone() }
    }

    /// The first `threads` cores.
    ///
    /// # Errors
    /// [`TopologyError::Threads`] for none, or for more than there are.
    pub fn first(&self, threads: usize) -> Result<Partition, TopologyError> {
        match self.cores.get(..threads) {
            Some(cores) if threads > 0 => Ok(Partition { cores: cores.to_vec() }),
            _ => Err(TopologyError::Threads { asked: threads, available: self.cores.len() }),
        }
    }
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
        assert_eq!(device.whole().cores, device.cores);
    }

    #[test]
    fn a_partition_takes_the_first_cores_and_no_more_than_there_are() {
        let device = CpuDevice { name: "test".into(), cores: vec![3, 5, 7], memory_bytes: 1 };
        assert_eq!(device.first(2).unwrap().cores, [3, 5]);
        assert_eq!(device.first(3).unwrap(), device.whole());
        for asked in [0, 4] {
            let refusal = device.first(asked).unwrap_err().to_string();
            assert!(refusal.contains("choose 1 to 3"), "{refusal}");
        }
    }
}
