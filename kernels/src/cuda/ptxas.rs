//! What ptxas says of each kernel.

/// Registers, shared memory and spills of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Its name.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// Bytes of a thread that went to memory for want of registers, and of its stack.
    pub spill_bytes: u32,
}

/// The usages in a log of `--ptxas-options=-v`, in its order.
#[must_use]
pub fn usages(log: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Usage { kernel, ..Usage::default() });
        }
        let Some(usage) = all.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            usage.spill_bytes = ["bytes stack frame", "bytes spill stores", "bytes spill loads"]
                .iter()
                .filter_map(|what| number_before(line, what))
                .sum();
        }
        if line.contains(": Used ") {
            usage.registers = number_before(line, "registers").unwrap_or(0);
            usage.shared_bytes = number_before(line, "bytes smem").unwrap_or(0);
        }
    }
    all
}

fn number_before(line: &str, what: &str) -> Option<u32> {
    line[..line.find(what)?].split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read() {
        let log = "ptxas info    : 12 bytes gmem\n\
            ptxas info    : Compiling entry function 'a' for 'sm_90'\n\
            ptxas info    : Function properties for a\n\
            ptxas         .     8 bytes stack frame, 4 bytes spill stores, 16 bytes spill loads\n\
            ptxas info    : Used 27 registers, used 1 barriers, 128 bytes smem\n\
            ptxas info    : Compiling entry function 'b' for 'sm_90'\n\
            ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 255 registers\n";
        let expected =
            [("a", 27, 128, 28), ("b", 255, 0, 0)].map(|(kernel, registers, shared_bytes, spill_bytes)| {
                Usage { kernel: kernel.into(), registers, shared_bytes, spill_bytes }
            });
        assert_eq!(usages(log), expected);
    }
}
