//! What is in a kernel, by nvdisasm (the wheel nvidia-cuda-nvdisasm, or a toolkit): its instructions and its loops.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

/// The instructions of one kernel, in their order.
pub(crate) struct Sass {
    pub(crate) kernel: String,
    /// Names with all that qualifies them, such as `LDG.E.NA.128.CONSTANT`.
    pub(crate) names: Vec<String>,
    /// From where a branch goes back to, up to that branch.
    loops: Vec<Range<usize>>,
}

impl Sass {
    pub(crate) fn count(&self, is: impl Fn(&str) -> bool) -> usize {
        self.names.iter().filter(|name| is(name)).count()
    }

    /// Loops that multiply on tensor cores and have no smaller one that does.
    pub(crate) fn inner_products(&self) -> impl Iterator<Item = &[String]> {
        let multiplies = |range: &&Range<usize>| self.names[(*range).clone()].iter().any(|name| is_mma(name));
        let all: Vec<_> = self.loops.iter().filter(multiplies).collect();
        let is_inner = {
            let all = all.clone();
            move |range: &&Range<usize>| {
                !all.iter().any(|other| {
                    other.len() < range.len()
                        && range.contains(&other.start)
                        && range.contains(&(other.end - 1))
                })
            }
        };
        all.into_iter().filter(is_inner).map(|range| &self.names[range.clone()])
    }

    /// The loop over the inputs: of the inner ones, that with the most products.
    pub(crate) fn k_loop(&self) -> Option<&[String]> {
        self.inner_products().max_by_key(|names| names.iter().filter(|name| is_mma(name)).count())
    }
}

/// A product of tensor cores.
pub(crate) fn is_mma(name: &str) -> bool {
    name.starts_with("HMMA")
}

/// 16 bytes of weights of a thread: past the L1 cache, by which they differ from a row's.
pub(crate) fn is_weight(name: &str) -> bool {
    name.starts_with("LDG.") && name.contains(".128") && name.contains(".NA")
}

/// To or from a thread's own memory: what found no register.
pub(crate) fn is_local(name: &str) -> bool {
    name.starts_with("LDL") || name.starts_with("STL")
}

/// Kernels of a cubin; `None` where there is no nvdisasm.
pub(crate) fn disassemble(cubin: &[u8], at: &Path) -> Option<Vec<Sass>> {
    std::fs::write(at, cubin).expect("the target folder can be written");
    let output = match Command::new("nvdisasm").arg("-c").arg(at).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        output => output.expect("nvdisasm"),
    };
    std::fs::remove_file(at).expect("it was just written");
    let text = String::from_utf8(output.stdout).expect("nvdisasm writes text");
    assert!(output.status.success(), "nvdisasm: {}", String::from_utf8_lossy(&output.stderr));
    let parts = text.split(".section\t.text.").skip(1);
    Some(parts.map(parse).collect())
}

fn parse(part: &str) -> Sass {
    let kernel = part.split([',', '\n']).next().unwrap_or_default().to_owned();
    let (mut names, mut labels, mut loops) = (Vec::new(), HashMap::new(), Vec::new());
    for line in part.lines().skip(1).map(str::trim) {
        if let Some(label) = line.strip_suffix(':').filter(|label| label.starts_with(".L")) {
            labels.insert(label.to_owned(), names.len());
        }
        // `/*0a70*/  @!P0 LDG.E.128 R8, desc[UR8][R18.64] ;`
        let Some((_, code)) = line.strip_prefix("/*").and_then(|line| line.split_once("*/")) else {
            continue;
        };
        let mut words = code.split_whitespace().skip_while(|word| word.starts_with('@'));
        let Some(name) = words.next().map(|name| name.trim_end_matches(';')) else { continue };
        if name.starts_with("BRA") {
            let to = code.split_once("`(").and_then(|(_, rest)| rest.split(')').next());
            if let Some(&from) = to.and_then(|to| labels.get(to)) {
                loops.push(from..names.len() + 1);
            }
        }
        names.push(name.to_owned());
    }
    Sass { kernel, names, loops }
}
