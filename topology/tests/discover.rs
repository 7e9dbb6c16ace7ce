//! GPUs and links as the driver's library tells of them, over a library of our own.

use faser_topology::{LinkKind, Topology};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the fake; it is loaded as the driver's would be.
fn fake(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvml/fake.c");
    let library = folder.join("libfake-nvml.so");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([&library, &source])
        .output()
        .expect("cc is there");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    library
}

#[test]
fn gpus_and_their_links_are_what_the_driver_shows() {
    let folder = std::env::temp_dir().join(format!("faser-nvml-{}", std::process::id()));
    for (bus, numa) in [("1b", "0"), ("2c", "0"), ("9a", "1"), ("ab", "1")] {
        let device = folder.join(format!("sys/bus/pci/devices/0000:{bus}:00.0"));
        std::fs::create_dir_all(&device).unwrap();
        std::fs::write(device.join("numa_node"), format!("{numa}\n")).unwrap();
    }
    let library = fake(&folder);
    let node = Topology::discover_with(Some(library.as_os_str()), &folder.join("sys"));
    std::fs::remove_dir_all(&folder).unwrap();
    let node = node.unwrap();
    assert_eq!(node.note, None);
    let gpus: Vec<_> = node
        .gpus
        .iter()
        .map(|gpu| (gpu.name.as_str(), gpu.sms, gpu.memory_bytes >> 30, gpu.numa, gpu.bus.as_deref()))
        .collect();
    assert_eq!(
        gpus,
        [
            ("Fast", 132, 80, Some(0), Some("0000:1b:00.0")),
            ("Fast", 132, 80, Some(0), Some("0000:2c:00.0")),
            ("Bridged", 108, 80, Some(1), Some("0000:9a:00.0")),
            ("Bridged", 108, 80, Some(1), Some("0000:ab:00.0")),
        ]
    );
    let link = |a, b| node.link(a, b).map(|link| (link.kind, (link.bytes_per_s / 1e9).round() as u64));
    assert_eq!(link(0, 1), Some((LinkKind::Nvlink, 100)));
    assert_eq!(link(2, 3), Some((LinkKind::Nvlink, 50)));
    // The slower of PCIe 5 and 4 with 16 lanes, and across.
    for (a, b) in [(0, 2), (0, 3), (1, 2), (1, 3)] {
        assert_eq!(link(a, b), Some((LinkKind::PcieNuma, 15)));
    }
}
