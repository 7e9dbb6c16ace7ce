//! The GPU itself: what the driver says of it, that every kernel compiles for it, and what is left of it when a kernel
//! writes to an illegal address.

use super::probes::{self, IllegalWriteArgs};
use super::{CheckResult, Report, Setting};
use faser_kernels::cuda::{
    Compiler, CudaError, CudaLane, File, Gpu, Share, are_prebuilt, files, libraries, probe_one,
};

/// Name, SMs, memory, versions; how long opening takes, and where the kernels come from. None is taken that an earlier start compiled.
///
/// # Errors
/// There is no such GPU, or a library is missing.
pub fn device(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let info = probe_one(setting.ordinal)?;
    for library in libraries(&info.arch())? {
        report.says(library.to_string());
    }
    let (major, minor) = info.capability;
    report.says(format!("{}, compute capability {major}.{minor}", info.name));
    report.number("SMs", f64::from(info.sms), "");
    report.number("CUDA of the driver, as it counts", f64::from(info.cuda_version), "");
    report.number("shared memory of a block", f64::from(info.block_shared_bytes), "B");
    let started = std::time::Instant::now();
    let gpu = Gpu::open(setting.ordinal, None)?;
    report.timed("opened, all kernels loaded", started.elapsed().as_secs_f64(), "s", None);
    report.says(gpu.kernels_from());
    let (free, total) = gpu.memory()?;
    report.number("memory", total as f64 / 1e9, "GB");
    report.number("memory that is free", free as f64 / 1e9, "GB");
    Ok(())
}

/// Every kernel compiles for this device, without spills and within its bound of registers: all files by NVRTC.
/// Registers, shared memory and spills of each kernel are told in detail.
///
/// # Errors
/// There is no GPU or no NVRTC, or a file does not compile.
pub fn compile(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let arch = probe_one(setting.ordinal)?.arch();
    let compiler = match Compiler::new(&arch, None) {
        Err(error) if are_prebuilt(&arch) => {
            report.no_meaning(format!("the kernels for {arch} are in this binary, and {error}"));
            return Ok(());
        }
        compiler => compiler?,
    };
    let (mut compiled, mut told) = (0usize, 0usize);
    let (mut spills, mut over) = (0u32, 0u32);
    for file in files().iter().chain(probes::FILES) {
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

/// A write to where no memory is: from then on every call says so, in the driver's words. And whether the process could open another
/// context, of which nobody here makes use.
///
/// # Errors
/// The GPU cannot be opened to begin with.
pub fn illegal_address(setting: &Setting, report: &mut Report<'_>) -> CheckResult {
    let gpu = Gpu::open(setting.ordinal, None)?;
    probes::load(&gpu)?;
    let mut lane = CudaLane::new(&[Share::whole(&gpu)], false)?;
    let launched = lane.launch(&IllegalWriteArgs::launch());
    let ended = launched.and_then(|()| lane.wait(&mut || {}));
    let words = ended.err().map(|error| (matches!(error, CudaError::Driver { .. }), error.to_string()));
    let (of_driver, words) = words.unwrap_or((false, "no error at all".to_owned()));
    report.right(format!("the lane ends: {words}"), of_driver);
    report.right("a later launch fails too", lane.launch(&IllegalWriteArgs::launch()).is_err());
    report.right("memory cannot be asked for", gpu.memory().is_err());
    drop((lane, gpu));
    let again = Gpu::open(setting.ordinal, None).and_then(|gpu| gpu.memory());
    let words = again.map_or_else(|error| format!("does not work: {error}"), |_| "works".to_owned());
    report.says(format!("another context in the same process {words}"));
    Ok(())
}
