//! GPUs and their links as NVML shows them. The library is loaded when it is asked for, and may be missing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use nvml_wrapper::enum_wrappers::device::TopologyLevel;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::sysfs;
use crate::{Gpu, Joined, Link, LinkKind};

/// NVLinks that a GPU can have.
const MOST_LINKS: u32 = 18;
/// What peers reach of PCIe's raw rate, and what is left of that from one processor's GPUs to the other's. Assumed.
const PCIE_REACHED: f64 = 0.8;
const ACROSS: f64 = 0.6;

/// All GPUs, and the links between them.
pub(super) fn gpus(library: Option<&OsStr>, sysfs: &Path) -> Result<(Vec<Gpu>, Vec<Joined>), String> {
    let nvml = match library {
        None => Nvml::init(),
        Some(path) => Nvml::builder().lib_path(path).init(),
    };
    let nvml = nvml.map_err(|error| match error {
        NvmlError::LibloadingError(_) => {
            "NVML (libnvidia-ml.so.1 of NVIDIA's driver) is not found".to_owned()
        }
        other => format!("NVML cannot be used: {other}"),
    })?;
    let asked = |what: &str| {
        let what = what.to_owned();
        move |error: NvmlError| format!("NVML does not tell {what}: {error}")
    };
    let count = nvml.device_count().map_err(asked("the number of GPUs"))?;
    let devices = (0..count)
        .map(|index| nvml.device_by_index(index).map_err(asked("its devices")))
        .collect::<Result<Vec<_>, _>>()?;
    let found = devices
        .iter()
        .map(|device| {
            let bus = device.pci_info().ok().map(|pci| sysfs::address(&pci.bus_id));
            Ok(Gpu {
                name: device.name().map_err(asked("a GPU's name"))?,
                sms: sms(device).map_err(asked("a GPU's cores"))?,
                memory_bytes: device.memory_info().map_err(asked("a GPU's memory"))?.total,
                numa: bus.as_deref().and_then(|bus| sysfs::numa(sysfs, bus)),
                bus,
            })
        })
        .collect::<Result<Vec<_>, String>>()?;
    let links = joined(&nvml, &devices, &found);
    Ok((found, links))
}

/// NVML counts FP32 lanes; how many of them an SM has goes with the compute capability.
fn sms(device: &Device<'_>) -> Result<u32, NvmlError> {
    let capability = device.cuda_compute_capability()?;
    let per_sm = match (capability.major, capability.minor) {
        (..=7, _) | (8, 0) => 64,
        _ => 128,
    };
    Ok(device.num_cores()? / per_sm)
}

fn joined(nvml: &Nvml, devices: &[Device<'_>], gpus: &[Gpu]) -> Vec<Joined> {
    let addresses: Vec<&str> = gpus.iter().filter_map(|gpu| gpu.bus.as_deref()).collect();
    let nvlinks: Vec<Nvlinks> = devices.iter().map(|device| Nvlinks::of(device, &addresses)).collect();
    let pairs = (0..gpus.len()).flat_map(|a| (a + 1..gpus.len()).map(move |b| (a, b)));
    pairs
        .map(|(a, b)| {
            let link = match nvlinks[a].bytes_per_s_to(&nvlinks[b], gpus[b].bus.as_deref()) {
                Some(bytes_per_s) => Link { kind: LinkKind::Nvlink, bytes_per_s },
                None => over_pcie(nvml, (&devices[a], &devices[b]), b as u32),
            };
            Joined { gpus: (a, b), link }
        })
        .collect()
}

/// Where the NVLinks of one GPU go, by PCI address, in bytes per second in each direction.
#[derive(Debug, Default)]
struct Nvlinks {
    gpus: BTreeMap<String, f64>,
    /// What is at the same switch is joined.
    switches: BTreeMap<String, f64>,
}

impl Nvlinks {
    fn of(device: &Device<'_>, gpus: &[&str]) -> Nvlinks {
        let mut found = Nvlinks::default();
        for number in 0..MOST_LINKS {
            let link = device.link_wrapper_for(number);
            if !link.is_active().unwrap_or(false) {
                continue;
            }
            // As NVML counts: 7 is NVLink 5.
            let rate = match link.version() {
                Ok(1) => 20e9,
                Ok(7..) => 50e9,
                _ => 25e9,
            };
            let Ok(remote) = link.remote_pci_info() else { continue };
            let address = sysfs::address(&remote.bus_id);
            // The wrapper (0.13) does not hand on what kind of device is there: what is none of the GPUs seen counts as a switch.
            let is_gpu = gpus.contains(&address.as_str());
            let ends = if is_gpu { &mut found.gpus } else { &mut found.switches };
            *ends.entry(address).or_default() += rate;
        }
        found
    }

    /// To the GPU at `bus`: straight, or through the switches that both are at.
    fn bytes_per_s_to(&self, other: &Nvlinks, bus: Option<&str>) -> Option<f64> {
        if let Some(rate) = bus.and_then(|bus| self.gpus.get(bus)) {
            return Some(*rate);
        }
        let shared = |(at, rate): (&String, &f64)| other.switches.get(at).map(|theirs| rate.min(*theirs));
        let through: f64 = self.switches.iter().filter_map(shared).sum();
        (through > 0.0).then_some(through)
    }
}

fn over_pcie(nvml: &Nvml, (a, b): (&Device<'_>, &Device<'_>), index_b: u32) -> Link {
    // It wants the other device for itself.
    let level = nvml.device_by_index(index_b).and_then(|other| a.topology_common_ancestor(other));
    let kind = match level {
        Ok(TopologyLevel::Internal | TopologyLevel::Single | TopologyLevel::Multiple) => LinkKind::PcieSwitch,
        Ok(TopologyLevel::System) => LinkKind::PcieNuma,
        _ => LinkKind::Pcie,
    };
    let Some(raw) = pcie(a).into_iter().chain(pcie(b)).reduce(f64::min) else { return Link::usual(kind) };
    let across = if kind == LinkKind::PcieNuma { ACROSS } else { 1.0 };
    Link { kind, bytes_per_s: PCIE_REACHED * across * raw }
}

/// PCIe's raw rate of a GPU, in bytes per second in each direction.
fn pcie(device: &Device<'_>) -> Option<f64> {
    let (generation, lanes) = (device.max_pcie_link_gen().ok()?, device.max_pcie_link_width().ok()?);
    let lane = match generation {
        ..=3 => 0.985e9,
        4 => 1.97e9,
        5 => 3.94e9,
        _ => 7.56e9,
    };
    Some(lane * f64::from(lanes))
}
