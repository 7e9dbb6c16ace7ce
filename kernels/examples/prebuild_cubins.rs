//! Compiles every kernel for every architecture that is served, into a folder that `FASER_CUBINS` then names for the build of a
//! binary that needs no NVRTC (kernels/build.rs). Needs NVRTC, no GPU.
//!
//! `cargo run -p faser-kernels --example prebuild_cubins -- FOLDER [ARCH..]`: such as `sm_90` alone, where the binary is for one kind of GPU.

use faser_kernels::cuda::{ARCHS, Compiler, File, files, prebuilt_name};
use std::error::Error;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{fs, io, thread};

/// What `faser gpu-check` loads beside.
const CHECKS: &[File] = &[File::new("check", include_str!("../gpu-check/cuda/check.cu"))];

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("which folder? `prebuild_cubins FOLDER`")?;
    let wanted: Vec<String> = std::env::args().skip(2).collect();
    if let Some(unknown) = wanted.iter().find(|arch| !ARCHS.contains(&arch.as_str())) {
        return Err(format!("there is no architecture {unknown}: {}", ARCHS.join(", ")).into());
    }
    let archs: Vec<&str> = ARCHS
        .iter()
        .copied()
        .filter(|arch| wanted.is_empty() || wanted.iter().any(|one| one == arch))
        .collect();
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    // Of other sources. First that by which the folder is taken: this may be interrupted.
    match fs::remove_file(folder.join("nvrtc")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "cubin") {
            fs::remove_file(path)?;
        }
    }
    let (major, minor) = Compiler::new(archs[0], None)?.version();
    let (started, archs) = (Instant::now(), Mutex::new(archs.iter()));
    let next = || archs.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        let run = || -> Result<(), Box<dyn Error + Send + Sync>> {
            while let Some(arch) = next() {
                let (compiler, mut bytes) = (Compiler::new(arch, None)?, 0);
                for file in files().iter().chain(CHECKS) {
                    let cubin = compiler.compile(file)?;
                    bytes += cubin.bytes.len();
                    fs::write(folder.join(format!("{}.cubin", prebuilt_name(file, arch))), cubin.bytes)?;
                }
                println!(
                    "{arch}: {} files, {bytes} bytes, {:.1} s",
                    files().len() + CHECKS.len(),
                    started.elapsed().as_secs_f64()
                );
            }
            Ok(())
        };
        let threads: Vec<_> = (0..thread::available_parallelism()?.get()).map(|_| scope.spawn(run)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked".into()).flatten());
        ended.collect::<Result<(), _>>().map_err(io::Error::other)
    })?;
    // Last: without it the folder is not taken.
    fs::write(folder.join("nvrtc"), format!("{major}.{minor}\n"))?;
    println!("by NVRTC {major}.{minor} into {}", folder.display());
    Ok(())
}
