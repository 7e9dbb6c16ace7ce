//! What sysfs tells of GPUs: where they are, and which NUMA node is next to them.

use std::fmt;
use std::fs;
use std::path::Path;

/// NVIDIA's number among PCI vendors.
const NVIDIA: &str = "0x10de";

/// An NVIDIA GPU on the PCI bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PciGpu {
    pub(super) bus: String,
    pub(super) numa: Option<usize>,
}

impl fmt::Display for PciGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.bus)?;
        self.numa.map_or(Ok(()), |numa| write!(f, " (NUMA node {numa})"))
    }
}

/// NVIDIA's display controllers and 3D accelerators, by their addresses.
pub(super) fn gpus(sysfs: &Path) -> Vec<PciGpu> {
    let Ok(entries) = fs::read_dir(sysfs.join("bus/pci/devices")) else { return Vec::new() };
    let mut found: Vec<PciGpu> = entries
        .filter_map(Result::ok)
        .filter(|entry| {
            let says = |file: &str, what: &str| {
                fs::read_to_string(entry.path().join(file)).is_ok_and(|text| text.trim().starts_with(what))
            };
            says("vendor", NVIDIA) && says("class", "0x03")
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .map(|bus| PciGpu { numa: numa(sysfs, &bus), bus })
        .collect();
    found.sort_by(|a, b| a.bus.cmp(&b.bus));
    found
}

/// The NUMA node next to the device at a PCI address; `None` if the machine has but one or does not say.
pub(super) fn numa(sysfs: &Path, bus: &str) -> Option<usize> {
    let text = fs::read_to_string(sysfs.join("bus/pci/devices").join(bus).join("numa_node")).ok()?;
    text.trim().parse().ok()
}

/// The driver writes `00000000:1B:00.0`, the kernel `0000:1b:00.0`.
pub(super) fn address(driver: &str) -> String {
    let lower = driver.to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 => format!("{}:{rest}", &domain[domain.len() - 4..]),
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_found_among_other_devices() {
        let root = std::env::temp_dir().join(format!("faser-sysfs-{}", std::process::id()));
        for (bus, vendor, class, numa) in [
            ("0000:9a:00.0", "0x10de", "0x030200", "1"),
            ("0000:1b:00.0", "0x10de", "0x030000", "-1"),
            ("0000:1b:00.1", "0x10de", "0x040300", "0"),
            ("0000:00:02.0", "0x8086", "0x030000", "0"),
        ] {
            let dir = root.join("bus/pci/devices").join(bus);
            fs::create_dir_all(&dir).unwrap();
            for (file, text) in [("vendor", vendor), ("class", class), ("numa_node", numa)] {
                fs::write(dir.join(file), format!("{text}\n")).unwrap();
            }
        }
        let found = gpus(&root);
        fs::remove_dir_all(&root).unwrap();
        let words: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(words, ["0000:1b:00.0", "0000:9a:00.0 (NUMA node 1)"]);
        assert_eq!(gpus(&root), []);
    }

    #[test]
    fn the_drivers_addresses_are_the_kernels() {
        assert_eq!(address("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(address("0001:1b:00.0"), "0001:1b:00.0");
        assert_eq!(address("odd"), "odd");
    }
}
