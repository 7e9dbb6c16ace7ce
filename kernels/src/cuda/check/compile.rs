//! Every kernel compiles for this device, without spills and within its bound of registers.

use super::{CheckResult, Report, Setting};
use crate::cuda::{Compiler, File, check_files, files, probe_one};

/// Compiles all files by NVRTC. Registers, shared memory and spills of each kernel are told in detail.
///
/// # Errors
/// There is no GPU or no NVRTC, or a file does not compile.
pub fn compile(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let arch = probe_one(setting.ordinal)?.arch();
    let compiler = Compiler::new(&arch, None)?;
    let (mut compiled, mut told) = (0usize, 0usize);
    let (mut spills, mut over) = (0u32, 0u32);
    for file in files().iter().chain(check_files()) {
        let usages = compiler.compile(file)?.usages();
        for kernel in File::kernels(file) {
            compiled += 1;
            let Some(usage) = usages.iter().find(|usage| usage.kernel == kernel.name) else { continue };
            told += 1;
            spills += usage.spill_bytes;
            over += usage.registers.saturating_sub(kernel.most_registers);
            for (what, value, unit) in [
                ("registers", usage.registers, "registers"),
                ("shared memory", usage.shared_bytes, "B"),
                ("spills", usage.spill_bytes, "B"),
            ] {
                report.detail(format!("{}: {what}", kernel.name), f64::from(value), unit);
            }
        }
    }
    report.number(format!("kernels compiled for {arch}"), compiled as f64, "");
    if told == 0 && setting.small {
        report.no_meaning("registers and spills: this compiler says nothing of them");
    } else {
        report.at_least("kernels of which ptxas tells", told as f64, "", compiled as f64);
        report.at_most("spills and stack of all kernels", f64::from(spills), "B", 0.0);
        report.at_most("registers beyond a kernel's bound", f64::from(over), "registers", 0.0);
    }
    Ok(())
}
