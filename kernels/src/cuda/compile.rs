//! Sources to cubins by NVRTC, which needs no GPU; cached on disk by what went in. And what ptxas says of each kernel.

use super::libraries::{LibraryError, Nvrtc, nvrtc_table};
use super::sources::File;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char, c_int};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};

/// Why there is no cubin.
#[derive(Debug, thiserror::Error)]
pub enum NvrtcError {
    /// The library is not there, or does not fit.
    #[error("CUDA kernels cannot be compiled: {0}")]
    Library(#[from] LibraryError),
    /// The compiler refused a file.
    #[error("{file}.cu does not compile for {arch}:\n{log}")]
    Refused {
        /// Which file.
        file: &'static str,
        /// For which architecture.
        arch: String,
        /// What the compiler said.
        log: String,
    },
    /// A call of the library failed.
    #[error("NVRTC failed in {call}: {source}")]
    Call {
        /// Which call.
        call: &'static str,
        /// What it returned.
        source: result::NvrtcError,
    },
    /// The cache's folder could not be written.
    #[error("compiled kernels cannot be cached in {path}: {source}")]
    Cache {
        /// What was to be written.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

/// A compiled file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cubin {
    /// What the driver loads.
    pub bytes: Vec<u8>,
    /// What compiler and assembler said.
    pub log: String,
}

impl Cubin {
    /// Registers, shared memory and spills of its kernels.
    #[must_use]
    pub fn usages(&self) -> Vec<KernelUsage> {
        usages(&self.log)
    }
}

/// Compiles for one architecture.
pub struct Compiler {
    nvrtc: &'static Nvrtc,
    arch: String,
    version: (i32, i32),
    cache: Option<PathBuf>,
}

impl Compiler {
    /// For `arch` (such as `sm_90`); cubins are cached in the folder `cache`, if there is one.
    ///
    /// # Errors
    /// If NVRTC is not on this machine.
    pub fn new(arch: &str, cache: Option<&Path>) -> Result<Compiler, NvrtcError> {
        let nvrtc = nvrtc_table()?;
        let mut version = (0, 0);
        // SAFETY: two places for two numbers.
        let status = unsafe { (nvrtc.nvrtcVersion)(&raw mut version.0, &raw mut version.1) };
        call("nvrtcVersion", status)?;
        Ok(Compiler { nvrtc, arch: arch.into(), version, cache: cache.map(Path::to_path_buf) })
    }

    /// Major and minor of NVRTC.
    #[must_use]
    pub fn version(&self) -> (i32, i32) {
        self.version
    }

    /// The file compiled, or as it was kept.
    ///
    /// # Errors
    /// If it does not compile, or cannot be cached.
    pub fn compile(&self, file: &File) -> Result<Cubin, NvrtcError> {
        let source = file.source();
        let options = options(&self.arch);
        let Some(folder) = &self.cache else { return self.build(file, &source, &options) };
        let path = folder.join(format!("{}.cubin", name_of(file, &self.arch, self.version)));
        let log = path.with_extension("log");
        if let (Ok(bytes), Ok(log)) = (std::fs::read(&path), std::fs::read_to_string(&log)) {
            return Ok(Cubin { bytes, log });
        }
        let cubin = self.build(file, &source, &options)?;
        keep(folder, &log, cubin.log.as_bytes())?;
        keep(folder, &path, &cubin.bytes)?;
        Ok(cubin)
    }

    fn build(&self, file: &File, source: &str, options: &[String]) -> Result<Cubin, NvrtcError> {
        let text = CString::new(source).expect("sources have no NUL");
        let (nvrtc, mut raw, none) = (self.nvrtc, std::ptr::null_mut(), std::ptr::null());
        // SAFETY: a place for a handle; source and name end with a NUL; there are no headers.
        let created = unsafe {
            (nvrtc.nvrtcCreateProgram)(&raw mut raw, text.as_ptr(), c"prelude.cuh".as_ptr(), 0, none, none)
        };
        call("nvrtcCreateProgram", created)?;
        let program = Program { nvrtc, raw };
        // From 12.9 on NVRTC keeps what it compiled, and of what it finds there its log is silent.
        let anew = (self.cache.is_none() && self.version >= (12, 9)).then(|| "--no-cache".to_owned());
        let options: Vec<CString> = options
            .iter()
            .chain(&anew)
            .map(|option| CString::new(option.as_str()).expect("options have no NUL"))
            .collect();
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program was just created, and is destroyed when dropped, below; the options outlive the call.
        let compiled = unsafe { (nvrtc.nvrtcCompileProgram)(raw, options.len() as c_int, options.as_ptr()) };
        let log = program.log()?;
        match compiled.result() {
            Ok(()) => Ok(Cubin { bytes: program.cubin()?, log }),
            Err(result::NvrtcError(sys::nvrtcResult::NVRTC_ERROR_COMPILATION)) => {
                Err(NvrtcError::Refused { file: file.name, arch: self.arch.clone(), log })
            }
            Err(source) => Err(NvrtcError::Call { call: "nvrtcCompileProgram", source }),
        }
    }
}

fn options(arch: &str) -> [String; 4] {
    [
        format!("--gpu-architecture={arch}"),
        "--std=c++17".into(),
        // A file uses a part of the prelude.
        "--diag-suppress=177".into(),
        "--ptxas-options=-v".into(),
    ]
}

/// A name for the cubin of a file, by all that went in: no other has it.
pub(super) fn name_of(file: &File, arch: &str, compiler: impl Hash) -> String {
    let went_in = (file.source(), options(arch), compiler);
    let key = [1u8, 2].map(|salt| {
        let mut hasher = DefaultHasher::new();
        (salt, &went_in).hash(&mut hasher);
        hasher.finish()
    });
    format!("{}-{arch}-{:016x}{:016x}", file.name, key[0], key[1])
}

/// Written beside, then renamed: who reads meanwhile sees all of it or nothing.
fn keep(folder: &Path, path: &Path, bytes: &[u8]) -> Result<(), NvrtcError> {
    let beside =
        folder.join(format!(".{}-{}", std::process::id(), path.file_name().unwrap_or_default().display()));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&beside, bytes))
        .and_then(|()| std::fs::rename(&beside, path))
        .map_err(|source| NvrtcError::Cache { path: path.into(), source })
}

fn call(call: &'static str, status: sys::nvrtcResult) -> Result<(), NvrtcError> {
    status.result().map_err(|source| NvrtcError::Call { call, source })
}

struct Program {
    nvrtc: &'static Nvrtc,
    raw: sys::nvrtcProgram,
}

impl Program {
    fn log(&self) -> Result<String, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives.
        call("nvrtcGetProgramLogSize", unsafe {
            (self.nvrtc.nvrtcGetProgramLogSize)(self.raw, &raw mut size)
        })?;
        let mut log = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        call("nvrtcGetProgramLog", unsafe {
            (self.nvrtc.nvrtcGetProgramLog)(self.raw, log.as_mut_ptr().cast::<c_char>())
        })?;
        // Its NUL is counted; an empty log may have none.
        let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        Ok(text.map_or_else(|_| String::new(), std::borrow::Cow::into_owned))
    }

    fn cubin(&self) -> Result<Vec<u8>, NvrtcError> {
        let mut size = 0;
        // SAFETY: the program lives.
        call("nvrtcGetCUBINSize", unsafe { (self.nvrtc.nvrtcGetCUBINSize)(self.raw, &raw mut size) })?;
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        call("nvrtcGetCUBIN", unsafe {
            (self.nvrtc.nvrtcGetCUBIN)(self.raw, bytes.as_mut_ptr().cast::<c_char>())
        })?;
        Ok(bytes)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once. A failure leaks it, no more.
        let _ = unsafe { (self.nvrtc.nvrtcDestroyProgram)(&raw mut self.raw) };
    }
}

/// Registers, shared memory and spills of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelUsage {
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
pub fn usages(log: &str) -> Vec<KernelUsage> {
    let mut all: Vec<KernelUsage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(KernelUsage { kernel, ..KernelUsage::default() });
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
                KernelUsage { kernel: kernel.into(), registers, shared_bytes, spill_bytes }
            });
        assert_eq!(usages(log), expected);
    }
}
