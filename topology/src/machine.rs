//! A machine: its host, its GPUs, and how they are joined.

use crate::CpuDevice;
use serde::Serialize;
use std::fmt;

/// One machine, found or written down.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topology {
    /// What it is called.
    pub name: String,
    /// Its processors and their memory.
    pub host: CpuDevice,
    /// Its GPUs, in the driver's order.
    pub gpus: Vec<Gpu>,
    /// How two GPUs are joined; every pair once, the lower number first.
    pub links: Vec<Joined>,
    /// Why there are no GPUs, or why little is known of them, if it was found so.
    pub note: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// What it calls itself.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// All of its memory.
    pub memory_bytes: u64,
    /// The NUMA node whose processors are next to it, if that is known.
    pub numa: Option<usize>,
    /// Where it is on the PCI bus, such as `0000:1b:00.0`, if that is known.
    pub bus: Option<String>,
}

/// Two GPUs and what is between them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Joined {
    /// Both, the lower number first.
    pub gpus: (usize, usize),
    /// What is between them.
    #[serde(flatten)]
    pub link: Link,
}

/// What is between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Link {
    /// Of which kind.
    pub kind: LinkKind,
    /// Bytes per second in each direction, as one of the two sees it.
    pub bytes_per_s: f64,
}

/// Kinds of links, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// NVLink, straight or through switches of its own.
    Nvlink,
    /// PCIe through a switch, past the processor.
    PcieSwitch,
    /// PCIe through the host bridges of one NUMA node.
    Pcie,
    /// PCIe and the link between two processors.
    PcieNuma,
}

impl LinkKind {
    /// All of them.
    pub const ALL: [LinkKind; 4] =
        [LinkKind::Nvlink, LinkKind::PcieSwitch, LinkKind::Pcie, LinkKind::PcieNuma];

    /// As it is written in a config.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::Nvlink => "nvlink",
            LinkKind::PcieSwitch => "pcie-switch",
            LinkKind::Pcie => "pcie",
            LinkKind::PcieNuma => "pcie-numa",
        }
    }

    /// The kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<LinkKind> {
        LinkKind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Bytes per second in each direction where nothing better is known: 18 links of NVLink 4, and what peers reach over PCIe 4 x16.
    #[must_use]
    pub fn usual_bytes_per_s(self) -> f64 {
        match self {
            LinkKind::Nvlink => 450e9,
            LinkKind::PcieSwitch | LinkKind::Pcie => 25e9,
            LinkKind::PcieNuma => 15e9,
        }
    }
}

/// In words.
impl fmt::Display for LinkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkKind::Nvlink => "NVLink",
            LinkKind::PcieSwitch => "PCIe through a switch",
            LinkKind::Pcie => "PCIe through the host",
            LinkKind::PcieNuma => "PCIe across NUMA nodes",
        })
    }
}

impl Link {
    /// A link of that kind at its usual speed.
    #[must_use]
    pub fn usual(kind: LinkKind) -> Link {
        Link { kind, bytes_per_s: kind.usual_bytes_per_s() }
    }
}

impl Topology {
    /// A machine whose GPUs are joined as `links` says (later entries win), and the other pairs by PCIe, according to their NUMA nodes.
    #[must_use]
    pub fn new(name: String, host: CpuDevice, gpus: Vec<Gpu>, links: &[Joined]) -> Topology {
        let pairs = (0..gpus.len()).flat_map(|a| (a + 1..gpus.len()).map(move |b| (a, b)));
        let of = |(a, b): (usize, usize)| {
            let said = links.iter().rev().find(|joined| joined.gpus == (a, b) || joined.gpus == (b, a));
            let apart = matches!((gpus[a].numa, gpus[b].numa), (Some(x), Some(y)) if x != y);
            let kind = if apart { LinkKind::PcieNuma } else { LinkKind::Pcie };
            Joined { gpus: (a, b), link: said.map_or_else(|| Link::usual(kind), |joined| joined.link) }
        };
        let links = pairs.map(of).collect();
        Topology { name, host, gpus, links, note: None }
    }

    /// What is between two GPUs; `None` for one and the same, or for one that is not there.
    #[must_use]
    pub fn link(&self, a: usize, b: usize) -> Option<Link> {
        let pair = (a.min(b), a.max(b));
        self.links.iter().find(|joined| joined.gpus == pair).map(|joined| joined.link)
    }

    /// The slowest link between any two of these GPUs, and which two.
    #[must_use]
    pub fn slowest(&self, gpus: &[usize]) -> Option<Joined> {
        let inside = |joined: &&Joined| gpus.contains(&joined.gpus.0) && gpus.contains(&joined.gpus.1);
        self.links
            .iter()
            .filter(inside)
            .min_by(|a, b| a.link.bytes_per_s.total_cmp(&b.link.bytes_per_s))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(numa: Option<usize>) -> Gpu {
        Gpu { name: "a".into(), sms: 8, memory_bytes: 1 << 30, numa, bus: None }
    }

    #[test]
    fn pairs_nobody_speaks_of_are_joined_by_what_their_numa_nodes_say() {
        let host = CpuDevice { name: "h".into(), cores: vec![0], nodes: vec![], memory_bytes: 1 };
        let fast = Link { kind: LinkKind::Nvlink, bytes_per_s: 1e12 };
        let gpus = vec![gpu(Some(0)), gpu(Some(0)), gpu(Some(1)), gpu(None)];
        let machine = Topology::new("n".into(), host, gpus, &[Joined { gpus: (2, 0), link: fast }]);
        let kind = |a, b| machine.link(a, b).map(|link| link.kind);
        assert_eq!(machine.links.len(), 6);
        assert_eq!(kind(0, 1), Some(LinkKind::Pcie));
        assert_eq!((kind(0, 2), kind(2, 0)), (Some(LinkKind::Nvlink), Some(LinkKind::Nvlink)));
        assert_eq!((kind(1, 2), kind(1, 3)), (Some(LinkKind::PcieNuma), Some(LinkKind::Pcie)));
        assert_eq!((kind(1, 1), kind(1, 9)), (None, None));
        assert_eq!(machine.slowest(&[0, 1, 2]).unwrap().gpus, (1, 2));
        assert_eq!(machine.slowest(&[0, 2]).unwrap().link, fast);
        assert_eq!(machine.slowest(&[3]), None);
    }

    #[test]
    fn kinds_have_names_and_the_better_ones_are_first() {
        for kind in LinkKind::ALL {
            assert_eq!(LinkKind::named(kind.name()), Some(kind));
        }
        assert_eq!(LinkKind::named("string"), None);
        assert!(LinkKind::ALL.is_sorted());
        assert!(LinkKind::ALL.map(LinkKind::usual_bytes_per_s).is_sorted_by(|a, b| a >= b));
    }
}
