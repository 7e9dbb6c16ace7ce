//! The machine this process runs on: the host by `/proc`, GPUs and their links by NVML, and without NVML what sysfs tells of them.

mod nvml;
mod sysfs;

use crate::{CpuDevice, Topology, TopologyError};
use std::ffi::OsStr;
use std::path::Path;

impl Topology {
    /// Looks at this machine. Without a driver there are no GPUs, and `note` says why.
    ///
    /// # Errors
    /// The host's own files under `/proc` cannot be read.
    pub fn discover() -> Result<Topology, TopologyError> {
        Topology::discover_with(None, Path::new("/sys"))
    }

    /// As [`Topology::discover`], with the NVML library at `nvml` instead of where the system has it, and sysfs at `sysfs`.
    ///
    /// # Errors
    /// As [`Topology::discover`].
    pub fn discover_with(nvml: Option<&OsStr>, sysfs: &Path) -> Result<Topology, TopologyError> {
        let host = CpuDevice::discover()?;
        let name = host.name.clone();
        let (gpus, links, note) = match nvml::gpus(nvml, sysfs) {
            Ok((gpus, _)) if gpus.is_empty() => {
                (gpus, Vec::new(), Some("the driver shows no GPU".to_owned()))
            }
            Ok((gpus, links)) => (gpus, links, None),
            Err(why) => (Vec::new(), Vec::new(), Some(without_driver(&why, &sysfs::gpus(sysfs)))),
        };
        Ok(Topology { note, ..Topology::new(name, host, gpus, &links) })
    }
}

fn without_driver(why: &str, seen: &[sysfs::PciGpu]) -> String {
    if seen.is_empty() {
        return format!("{why}, and the PCI bus has no NVIDIA GPU");
    }
    let list = seen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("{why}; the PCI bus has NVIDIA GPUs at {list}: install NVIDIA's driver to use them")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_has_a_host_and_says_why_it_has_no_gpus() {
        let nowhere = std::env::temp_dir().join("no-such-library.so");
        let machine = Topology::discover_with(Some(nowhere.as_os_str()), Path::new("/nonexistent")).unwrap();
        assert!(machine.gpus.is_empty() && machine.links.is_empty() && !machine.host.cores.is_empty());
        let note = machine.note.unwrap();
        assert!(note.contains("NVML") && note.contains("no NVIDIA GPU"), "{note}");
    }
}
