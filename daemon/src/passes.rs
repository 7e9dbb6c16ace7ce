//! `faser sim --passes`: where the time of simulated verify passes goes, by rows and links.

use std::fmt::Write;

use faser_bench::sim::SimSpec;
use faser_engine::sim::{Hardware, Links, PassParts, Roofline};
use faser_topology::{Link, LinkKind};

/// Passes: so many sequences, rows of each, tokens before them. Decoding, then verification, then prefill.
const PASSES: [(usize, usize, usize); 10] = [
    (1, 1, 1024),
    (8, 1, 1024),
    (64, 1, 1024),
    (8, 5, 1024),
    (32, 5, 1024),
    (64, 5, 1024),
    (128, 5, 1024),
    (1, 512, 0),
    (2, 1024, 0),
    (4, 2048, 0),
];

/// A table for each of the links.
pub(crate) fn table(spec: &SimSpec, links: &[Links]) -> String {
    let mut text = String::new();
    for links in links {
        let hardware = Hardware { links: *links, ..spec.hardware };
        let roofline = Roofline::new(hardware, spec.pair, &[]);
        let (target, tp) = (spec.pair.target.name, spec.pair.target.tp);
        let rate = links.bandwidth / 1e9;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{target} on {tp} x {}, all-reduce over {} at {rate:.0} GB/s\n\n{:>9} {:>6} {:>11} {:>13} {:>9} {:>9} {:>6}",
            hardware.name,
            links.kind,
            "sequences",
            "rows",
            "compute ms",
            "all-reduce ms",
            "serial ms",
            "halves ms",
            "gain"
        );
        for (chunks, rows, context) in PASSES {
            let parts = roofline.verify_parts(chunks, rows, context);
            let PassParts { compute_s, all_reduce_s, halves_s } = parts;
            let serial_s = compute_s + all_reduce_s;
            let gain = 100.0 * (serial_s / halves_s.min(serial_s) - 1.0);
            let [compute, all_reduce, serial, halves] =
                [compute_s, all_reduce_s, serial_s, halves_s].map(|seconds| seconds * 1e3);
            let _ = writeln!(
                text,
                "{chunks:>9} {:>6} {compute:>11.2} {all_reduce:>13.2} {serial:>9.2} {halves:>9.2} {gain:>5.1}%",
                chunks * rows
            );
        }
        text.push('\n');
    }
    text
}

/// Reads `KIND` or `KIND:GB/s`.
pub(crate) fn link(text: &str) -> Result<Links, String> {
    let (name, rate) = text.split_once(':').map_or((text, None), |(name, rate)| (name, Some(rate)));
    let names = LinkKind::ALL.map(LinkKind::name).join(", ");
    let kind = LinkKind::named(name).ok_or_else(|| format!("choose one of {names}"))?;
    let Some(rate) = rate else { return Ok(Links::over(Link::usual(kind))) };
    let gb_per_s = rate.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    let gb_per_s = gb_per_s.ok_or("behind the colon stands a rate in GB/s, such as pcie:50")?;
    Ok(Links::over(Link { kind, bytes_per_s: gb_per_s * 1e9 }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};
    use crate::sim::SimArgs;

    fn args(line: &str) -> SimArgs {
        match Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command) {
            Ok(Command::Sim(args)) => *args,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn links_and_ranks_are_laid_over_the_pair() {
        let spec = args("faser sim --pair llama3 --tp 4 --link pcie:50 --overlap-all-reduce").spec().unwrap();
        assert_eq!((spec.pair.gpus, spec.pair.target.tp, spec.pair.draft.tp), (4, 4, 1));
        let Links { kind, bandwidth, overlapped, .. } = spec.hardware.links;
        assert_eq!((kind, bandwidth.round() as u64, overlapped), (LinkKind::Pcie, 40_000_000_000, true));
        assert!(spec.to_string().contains("4 x h100 joined by PCIe through the host"), "{spec}");
        let line = "faser sim --pair llama3 --tp 4 --passes nvlink,pcie";
        let table = table(&args(line).spec().unwrap(), &args(line).passes);
        assert!(
            table.contains("over NVLink at 250 GB/s")
                && table.contains("over PCIe through the host at 20 GB/s"),
            "{table}"
        );
    }
}
