//! The library loaded, launches on it, and memory that notices writes beside it.

use crate::build;
use faser_kernels::cuda::{Launch, Ptr, file, kernel};
use half::bf16;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, OnceLock};

type Entry = unsafe extern "C" fn(
    *const c_char,
    *const c_void,
    usize,
    *const c_uint,
    c_uint,
    usize,
    c_int,
) -> *const c_char;

/// Orders in which the fibers of a block run.
pub(crate) const ORDERS: [i32; 3] = [0, 1, 2];

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
            writeln!(std::io::stderr(), "\nskipped: cuda_host {test}: {reason}").expect("stderr");
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
    /// Runs a launch in one order; what went wrong otherwise.
    pub(crate) fn try_run<A>(&self, launch: &Launch<A>, order: i32) -> Result<(), String> {
        if launch.grid.contains(&0) {
            return Ok(());
        }
        if let Some(kernel) = kernel(launch.kernel) {
            // A device refuses more threads than the kernel was compiled for.
            let text = file(kernel.file).expect("a kernel's file").text;
            let written = format!("KERNEL({}) {}(", launch.block, launch.kernel);
            assert!(text.contains(&written), "{} has not {} threads", launch.kernel, launch.block);
        }
        let name = CString::new(launch.kernel).expect("a name");
        let _one = self.busy.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // SAFETY: the library checks the size of the arguments; pointers in them are buffers of the test, large enough for the shape.
        let fault = unsafe {
            (self.entry)(
                name.as_ptr(),
                (&raw const launch.args).cast(),
                size_of::<A>(),
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

    #[track_caller]
    pub(crate) fn run<A>(&self, launch: &Launch<A>, order: i32) {
        if let Err(fault) = self.try_run(launch, order) {
            panic!("{} in order {order}: {fault}", launch.kernel);
        }
    }
}

/// What may lie in a [`Memory`].
pub(crate) trait Plain: Copy + PartialEq + std::fmt::Debug {}
impl Plain for f32 {}
impl Plain for bf16 {}
impl Plain for u32 {}
impl Plain for u64 {}
impl Plain for i32 {}

/// Memory that a kernel may write, with a margin on each side that it must not.
pub(crate) struct Memory<T> {
    all: Vec<T>,
    margin: T,
}

const MARGIN: usize = 64;

impl<T: Plain> Memory<T> {
    pub(crate) fn new(content: &[T], margin: T) -> Memory<T> {
        let mut all = vec![margin; MARGIN];
        all.extend_from_slice(content);
        all.extend(vec![margin; MARGIN]);
        Memory { all, margin }
    }

    pub(crate) fn ptr(&mut self) -> Ptr {
        Ptr(self.all[MARGIN..].as_mut_ptr() as u64)
    }

    /// The content.
    ///
    /// # Panics
    /// If something was written beside it.
    #[track_caller]
    pub(crate) fn read(&self) -> &[T] {
        let end = self.all.len() - MARGIN;
        for beside in [&self.all[..MARGIN], &self.all[end..]] {
            assert!(beside.iter().all(|x| *x == self.margin), "a write beside the memory");
        }
        &self.all[MARGIN..end]
    }
}

/// f32 with a margin.
pub(crate) fn floats(content: &[f32]) -> Memory<f32> {
    Memory::new(content, 77.25)
}

/// u32 with a margin.
pub(crate) fn words(content: &[u32]) -> Memory<u32> {
    Memory::new(content, 0xabcd_1234)
}

/// An array that kernels only read.
pub(crate) fn ptr<T>(slice: &[T]) -> Ptr {
    Ptr(slice.as_ptr() as u64)
}

/// A copy that stays for the rest of the process: for what is made in the middle of an expression.
pub(crate) fn lasting<T: Plain>(content: &[T]) -> Ptr {
    ptr(Box::leak(content.to_vec().into_boxed_slice()))
}

/// A number of rows, where kernels look for it.
pub(crate) fn count(rows: usize) -> Ptr {
    lasting(&[rows as u32])
}

/// Elements of either type, filled from f32 and read as f32.
pub(crate) enum Elements {
    F32(Memory<f32>),
    Bf16(Memory<bf16>),
}

impl Elements {
    pub(crate) fn new(element: faser_kernels::cuda::Element, content: &[f32]) -> Elements {
        match element {
            faser_kernels::cuda::Element::F32 => Elements::F32(floats(content)),
            faser_kernels::cuda::Element::Bf16 => {
                let rounded: Vec<bf16> = content.iter().map(|x| bf16::from_f32(*x)).collect();
                Elements::Bf16(Memory::new(&rounded, bf16::from_f32(-3.5)))
            }
        }
    }

    pub(crate) fn ptr(&mut self) -> Ptr {
        match self {
            Elements::F32(memory) => memory.ptr(),
            Elements::Bf16(memory) => memory.ptr(),
        }
    }

    #[track_caller]
    pub(crate) fn read(&self) -> Vec<f32> {
        match self {
            Elements::F32(memory) => memory.read().to_vec(),
            Elements::Bf16(memory) => memory.read().iter().map(|x| x.to_f32()).collect(),
        }
    }
}
