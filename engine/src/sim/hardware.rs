//! Devices by their figures: what a roofline needs to know of a GPU, and of the links of several.
//!
//! Peak figures are the vendor's data sheets; what of them a good kernel reaches is an assumption (85 % of the bandwidth,
//! 70 % of the dense bf16 rate), and so are launch costs with captured graphs.

use faser_topology::{Link, LinkKind};

/// One GPU, as far as the time of a pass goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// What it is called on a command line.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub sms: usize,
    /// Memory, in bytes.
    pub memory_bytes: f64,
    /// Memory bandwidth that kernels reach, in bytes per second.
    pub bandwidth: f64,
    /// Dense bf16 operations per second that matrix products reach.
    pub flops: f64,
    /// Seconds a pass costs before it does anything: launch of its graph, sampling, the host's turn.
    pub step_s: f64,
    /// Seconds each layer loses between its dependent kernels.
    pub layer_s: f64,
    /// What joins several of them.
    pub links: Links,
}

/// Share of the SMs from which on a lane gets the whole memory bandwidth. Microbenchmarks of bandwidth against SM count put
/// it between a third and a half; it is assumed, not measured here.
const BANDWIDTH_SATURATES_AT: f64 = 0.4;

impl Hardware {
    /// The presets.
    pub const ALL: [Hardware; 3] = [Hardware::H100, Hardware::H200, Hardware::A100];

    /// H100 SXM5 80 GB: 3.35 TB/s, 989 TFLOP/s.
    pub const H100: Hardware = Hardware {
        name: "h100",
        sms: 132,
        memory_bytes: 80e9,
        bandwidth: 0.85 * 3.35e12,
        flops: 0.7 * 989e12,
        step_s: 150e-6,
        layer_s: 20e-6,
        links: Links {
            kind: LinkKind::Nvlink,
            bandwidth: 250e9,
            start_s: 6e-6,
            hop_s: 1e-6,
            overlapped: false,
        },
    };

    /// H200 SXM 141 GB: an H100 with 4.8 TB/s.
    pub const H200: Hardware =
        Hardware { name: "h200", memory_bytes: 141e9, bandwidth: 0.85 * 4.8e12, ..Hardware::H100 };

    /// A100 SXM4 80 GB: 2.04 TB/s, 312 TFLOP/s.
    pub const A100: Hardware = Hardware {
        name: "a100",
        sms: 108,
        memory_bytes: 80e9,
        bandwidth: 0.85 * 2.039e12,
        flops: 0.7 * 312e12,
        step_s: 150e-6,
        layer_s: 22e-6,
        links: Links {
            kind: LinkKind::Nvlink,
            bandwidth: 170e9,
            start_s: 8e-6,
            hop_s: 1e-6,
            overlapped: false,
        },
    };

    /// The preset of this name.
    pub fn named(name: &str) -> Option<Hardware> {
        Hardware::ALL.into_iter().find(|hardware| hardware.name == name)
    }

    /// Share of the memory bandwidth that `share` of the SMs can draw.
    pub fn bandwidth_share(share: f64) -> f64 {
        (share / BANDWIDTH_SATURATES_AT).min(1.0)
    }
}

/// The links of a group, as far as the time of an all-reduce goes, by ring or tree:
///
/// ```text
///   ring   start + 2 (n - 1) hops              + 2 (n - 1) / n x bytes / bandwidth
///   tree   start + 2 x ceil(log2 n) hops       + 2 x bytes / bandwidth
/// ```
/// The faster of the two is taken, as libraries do: a tree for few bytes on many ranks, a ring else. What an all-reduce reaches of a link's
/// rate, its start and its hops are assumed, by kind of link; nothing of it was measured here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Links {
    /// What they are.
    pub kind: LinkKind,
    /// Bytes per second that an all-reduce moves over each, each way.
    pub bandwidth: f64,
    /// Seconds an all-reduce takes to start.
    pub start_s: f64,
    /// Seconds from one rank to the next.
    pub hop_s: f64,
    /// Whether the all-reduce of one half of the rows may go under the compute of the other half, where that pays.
    pub overlapped: bool,
}

impl Links {
    /// Links of this kind and rate.
    pub fn over(link: Link) -> Links {
        let (reached, start_s, hop_s) = match link.kind {
            LinkKind::Nvlink => (250.0 / 450.0, 6e-6, 1e-6),
            LinkKind::PcieSwitch => (0.8, 10e-6, 2e-6),
            LinkKind::Pcie => (0.8, 10e-6, 3e-6),
            LinkKind::PcieNuma => (0.8, 12e-6, 5e-6),
        };
        Links { kind: link.kind, bandwidth: reached * link.bytes_per_s, start_s, hop_s, overlapped: false }
    }

    /// Seconds of an all-reduce of so many bytes over `ranks`; none for one rank.
    pub fn all_reduce_s(&self, bytes: f64, ranks: usize) -> f64 {
        if ranks < 2 {
            return 0.0;
        }
        let n = ranks as f64;
        let moved_s = 2.0 * bytes / self.bandwidth;
        let ring = 2.0 * (n - 1.0) * self.hop_s + (n - 1.0) / n * moved_s;
        let tree = 2.0 * n.log2().ceil() * self.hop_s + moved_s;
        self.start_s + ring.min(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_partition_draws_a_part_of_the_bandwidth_and_a_large_one_all() {
        assert!((Hardware::bandwidth_share(16.0 / 132.0) - 0.303).abs() < 1e-3);
        assert!((Hardware::bandwidth_share(0.75) - 1.0).abs() < 1e-12);
        assert_eq!(Hardware::named("h200").map(|hardware| hardware.sms), Some(132));
        assert_eq!(Hardware::named("b9000"), None);
    }

    #[test]
    fn few_bytes_go_by_tree_and_many_by_ring() {
        let links = Links::over(Link::usual(LinkKind::Nvlink));
        assert_eq!(links.all_reduce_s(1e6, 1), 0.0);
        // Two ranks: both ways have two hops, and the ring moves half as much.
        assert!((links.all_reduce_s(1e6, 2) - (8e-6 + 1e6 / 250e9)).abs() < 1e-12);
        let tree = |bytes: f64| 6e-6 + 6.0 * 1e-6 + 2.0 * bytes / 250e9;
        let ring = |bytes: f64| 6e-6 + 14.0 * 1e-6 + 1.75 * bytes / 250e9;
        assert!((links.all_reduce_s(1e3, 8) - tree(1e3)).abs() < 1e-12);
        assert!((links.all_reduce_s(1e9, 8) - ring(1e9)).abs() < 1e-9);
    }

    #[test]
    fn worse_links_take_longer() {
        for (bytes, ranks) in [(1e3, 2), (1e6, 4), (1e8, 8)] {
            let times = LinkKind::ALL.map(|kind| Links::over(Link::usual(kind)).all_reduce_s(bytes, ranks));
            assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
        }
    }
}
