//! What the driver says of a GPU.

use super::{CheckResult, Report, Setting};
use crate::cuda::{Gpu, check_libraries, probe_one};

/// Name, SMs, memory, versions; and how long opening takes, with all kernels compiled anew.
///
/// # Errors
/// There is no such GPU, or a library is missing.
pub fn device(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let info = probe_one(setting.ordinal)?;
    check_libraries()?;
    let (major, minor) = info.capability;
    report.says(format!("{}, compute capability {major}.{minor}", info.name));
    report.number("SMs", f64::from(info.sms), "");
    report.number("CUDA of the driver, as it counts", f64::from(info.cuda_version), "");
    report.number("shared memory of a block", f64::from(info.block_shared_bytes), "B");
    let started = std::time::Instant::now();
    let gpu = Gpu::open(setting.ordinal, None)?;
    report.timed("opened, all kernels compiled", started.elapsed().as_secs_f64(), "s", None);
    let (free, total) = gpu.memory()?;
    report.number("memory", total as f64 / 1e9, "GB");
    report.number("memory that is free", free as f64 / 1e9, "GB");
    Ok(())
}
