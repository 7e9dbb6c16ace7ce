//! A kernel that goes astray: every call says so, in the driver's words, until the context is let go; and whether there is one after it.

use super::probes::StrayArgs;
use super::{CheckResult, Report, Setting};
use crate::cuda::{CudaError, CudaLane, Gpu, Share};

/// A write to where no memory is.
///
/// # Errors
/// The GPU cannot be opened to begin with.
pub fn astray(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    gpu.load_checks()?;
    let mut lane = CudaLane::new(&[Share::whole(&gpu)], false)?;
    let launched = lane.launch(&StrayArgs::launch());
    let ended = launched.and_then(|()| lane.wait(&mut || {}));
    let words = ended.err().map(|error| (matches!(error, CudaError::Driver { .. }), error.to_string()));
    let (of_driver, words) = words.unwrap_or((false, "no error at all".to_owned()));
    report.right(format!("the lane ends: {words}"), of_driver);
    report.right("a later launch fails too", lane.launch(&StrayArgs::launch()).is_err());
    report.right("memory cannot be asked for", gpu.memory().is_err());
    drop((lane, gpu));
    // Services rely on it to go on without a new process; one that cannot is given up.
    let again = Gpu::open(setting.ordinal, None).and_then(|gpu| gpu.memory());
    let words = again.as_ref().err().map_or_else(String::new, |error| format!(": {error}"));
    report.right(format!("a new context in the same process works{words}"), again.is_ok());
    Ok(())
}
