//! Devices by their figures: what a roofline needs to know of a GPU.
//!
//! Peak figures are the vendor's data sheets; what of them a good kernel reaches is an assumption (85 % of the bandwidth,
//! 70 % of the dense bf16 rate), and so are launch costs with captured graphs.

use super::links::Links;
use faser_topology::LinkKind;

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
}
