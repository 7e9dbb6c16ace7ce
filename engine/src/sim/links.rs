//! Time of an all-reduce over a group's links, by ring or tree.
//!
//! ```text
//!   ring   start + 2 (n - 1) hops              + 2 (n - 1) / n x bytes / bandwidth
//!   tree   start + 2 x ceil(log2 n) hops       + 2 x bytes / bandwidth
//! ```
//! The faster of the two is taken, as libraries do: a tree for few bytes on many ranks, a ring else. What an all-reduce reaches of a link's
//! rate, its start and its hops are assumed, by kind of link; nothing of it was measured here.

use faser_topology::{Link, LinkKind};

/// The links of a group, as far as the time of an all-reduce goes.
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
