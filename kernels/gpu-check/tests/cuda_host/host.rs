//! The library loaded, and launches on it over memory of the test.

use crate::build;
use faser_gpu_check::FILES;
use faser_gpu_check::ops::case_bench::{AnyArgs, Executor};
use faser_kernels::cuda::{File, Launch, Ptr, kernels};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock, PoisonError};

type Entry = unsafe extern "C" fn(
    *const c_char,
    *const c_void,
    usize,
    *const c_uint,
    c_uint,
    usize,
    c_int,
) -> *const c_char;

/// Kernels as functions of this process.
pub(crate) struct Host {
    entry: Entry,
    /// One launch at a time: the fibers are global.
    busy: Mutex<()>,
}

/// The kernels; `None`, with the reason printed past the harness so that it can be counted, where they cannot be built.
pub(crate) fn host(test: &str) -> Option<&'static Host> {
    static HOST: OnceLock<Result<Host, String>> = OnceLock::new();
    match HOST.get_or_init(load) {
        Ok(host) => Some(host),
        Err(reason) => {
            faser_skipped::skip(&format!("cuda_host {test}"), reason);
            None
        }
    }
}

fn load() -> Result<Host, String> {
    let path = build::library()?;
    let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
    // SAFETY: a library that this test has just built; it is never closed.
    let entry = unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!library.is_null(), "dlopen {path:?}");
        libc::dlsym(library, c"faser_launch".as_ptr())
    };
    assert!(!entry.is_null(), "the library has an entry");
    // SAFETY: it is the function that build.rs writes, of this signature.
    Ok(Host { entry: unsafe { std::mem::transmute::<*mut c_void, Entry>(entry) }, busy: Mutex::new(()) })
}

impl Host {
    /// Runs a launch in one order; what went wrong otherwise. `args` are where, and how many bytes.
    fn entered<A>(&self, launch: &Launch<A>, args: (*const u8, usize), order: i32) -> Result<(), String> {
        let mut known = kernels().chain(FILES.iter().flat_map(File::kernels));
        if let Some(kernel) = known.find(|kernel| kernel.name == launch.kernel) {
            // A device refuses more threads than the kernel was compiled for.
            assert_eq!(kernel.threads, launch.block, "threads of a block of {}", launch.kernel);
        }
        let name = CString::new(launch.kernel).expect("a name");
        let _one = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the library checks the size of the arguments; pointers in them are memory of the test, large enough for the shape.
        let fault = unsafe {
            (self.entry)(
                name.as_ptr(),
                args.0.cast(),
                args.1,
                launch.grid.as_ptr(),
                launch.block,
                launch.shared_bytes as usize,
                order,
            )
        };
        if fault.is_null() {
            return Ok(());
        }
        // SAFETY: a literal of the library.
        Err(unsafe { CStr::from_ptr(fault) }.to_string_lossy().into_owned())
    }

    /// Runs a launch whose arguments may be of another size than the kernel's.
    pub(crate) fn try_run<A>(&self, launch: &Launch<A>, order: i32) -> Result<(), String> {
        self.entered(launch, ((&raw const launch.args).cast(), size_of::<A>()), order)
    }
}

impl Executor for Host {
    fn store(&self, bytes: &[u8]) -> Ptr {
        // Aligned for vector loads; it stays for the rest of the process.
        let mut words = vec![0u128; bytes.len().div_ceil(size_of::<u128>()).max(1)];
        let start: *mut u128 = words.as_mut_ptr();
        // SAFETY: as long as the bytes, and nobody else's.
        unsafe { start.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        std::mem::forget(words);
        Ptr(start as u64)
    }

    fn load(&self, from: Ptr, to: &mut [u8]) {
        // SAFETY: memory of `store`, which was at least as long.
        unsafe { to.as_mut_ptr().copy_from_nonoverlapping(from.0 as *const u8, to.len()) };
    }

    fn orders(&self) -> &'static [i32] {
        &[0, 1, 2]
    }

    fn most_shared(&self) -> u32 {
        u32::MAX
    }

    fn run(&self, launch: &Launch<AnyArgs>, order: i32) -> Result<(), String> {
        self.entered(launch, launch.args.start(), order)
    }
}
