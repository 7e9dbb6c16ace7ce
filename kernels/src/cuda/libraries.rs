//! The libraries beside the driver, NVRTC, cublasLt and NCCL: each is looked for once, by the names that toolkits and wheels give its
//! file, the newest first that the driver can run the code of.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use cudarc::cublaslt::sys as lt;
use cudarc::driver::sys as driver;
use cudarc::nccl::sys as nccl;
use cudarc::nvrtc::sys as nvrtc;

/// Why a library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// It is not there under any of its names.
    #[error(
        "{name} is not found (as {tried}): install the CUDA {cuda} toolkit or `pip install {package}`, and put its folder into \
         LD_LIBRARY_PATH"
    )]
    Missing {
        /// What it is called.
        name: &'static str,
        /// The names of its file.
        tried: String,
        /// The CUDA that the driver speaks, its major version.
        cuda: i32,
        /// The wheel it is in.
        package: &'static str,
    },
    /// The driver does not load the code that it makes or brings.
    #[error(
        "{library} is for a newer driver, which speaks CUDA {cuda}: `pip install {package}`, and put its folder first in LD_LIBRARY_PATH"
    )]
    TooNew {
        /// What was found.
        library: LoadedLibrary,
        /// The CUDA that the driver speaks, its major version.
        cuda: i32,
        /// The wheel that fits.
        package: &'static str,
    },
    /// It has not what its name says.
    #[error("{file} has no {symbol}: it is damaged, or another library")]
    Broken {
        /// The file.
        file: String,
        /// What is missing in it.
        symbol: &'static str,
    },
}

/// A library that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedLibrary {
    /// What it is called.
    pub name: &'static str,
    /// Its version, as people write it.
    pub version: String,
    /// The name it was asked for by.
    pub asked: &'static str,
    /// Where it lies.
    pub file: String,
}

/// On one line: name, version, file.
impl fmt::Display for LoadedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} at {})", self.name, self.version, self.asked, self.file)
    }
}

/// A library's file, open as long as the process lives.
struct Opened {
    handle: *mut c_void,
    asked: &'static str,
}

impl Opened {
    /// The first of these names that the loader finds.
    fn first(names: &[&'static str]) -> Option<Opened> {
        names.iter().find_map(|&asked| {
            let name = CString::new(asked).ok()?;
            // SAFETY: loading runs nothing but the initialisers of a library of NVIDIA's.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            (!handle.is_null()).then_some(Opened { handle, asked })
        })
    }

    /// Where a symbol of it is.
    fn symbol(&self, symbol: &'static str) -> Result<*mut c_void, LibraryError> {
        let name = CString::new(symbol).expect("names have no NUL");
        // SAFETY: the library stays open.
        let at = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if at.is_null() { Err(LibraryError::Broken { file: self.asked.to_owned(), symbol }) } else { Ok(at) }
    }
}

/// The file that has the code at this address.
fn file_of(address: *const c_void) -> Option<String> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: a place for what is found; only if it was does it have a name, which lives as long as the library.
    unsafe {
        if libc::dladdr(address, found.as_mut_ptr()) == 0 {
            return None;
        }
        let name = found.assume_init().dli_fname;
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    }
}

/// A table of a library's functions, found once.
macro_rules! table {
    ($(#[$doc:meta])* $Table:ident { $(fn $function:ident($($argument:ty),* $(,)?) -> $result:ty;)+ }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(super) struct $Table {
            $(pub(super) $function: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl $Table {
            fn of(library: &Opened) -> Result<$Table, LibraryError> {
                Ok($Table {
                    // SAFETY: a function of that name has this type in the library's own header, as bindgen read it for cudarc.
                    $($function: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($argument),*) -> $result>(
                            library.symbol(stringify!($function))?,
                        )
                    },)+
                })
            }
        }
    };
}

table! {
    /// The compiler.
    Nvrtc {
        fn nvrtcVersion(*mut c_int, *mut c_int) -> nvrtc::nvrtcResult;
        fn nvrtcCreateProgram(*mut nvrtc::nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char) -> nvrtc::nvrtcResult;
        fn nvrtcCompileProgram(nvrtc::nvrtcProgram, c_int, *const *const c_char) -> nvrtc::nvrtcResult;
        fn nvrtcDestroyProgram(*mut nvrtc::nvrtcProgram) -> nvrtc::nvrtcResult;
        fn nvrtcGetProgramLogSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        fn nvrtcGetProgramLog(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
        fn nvrtcGetCUBINSize(nvrtc::nvrtcProgram, *mut usize) -> nvrtc::nvrtcResult;
        fn nvrtcGetCUBIN(nvrtc::nvrtcProgram, *mut c_char) -> nvrtc::nvrtcResult;
    }
}

table! {
    /// Products.
    Lt {
        fn cublasLtGetVersion() -> usize;
        fn cublasLtCreate(*mut lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        fn cublasLtDestroy(lt::cublasLtHandle_t) -> lt::cublasStatus_t;
        fn cublasLtMatrixLayoutCreate(*mut lt::cublasLtMatrixLayout_t, lt::cudaDataType, u64, u64, i64) -> lt::cublasStatus_t;
        fn cublasLtMatrixLayoutDestroy(lt::cublasLtMatrixLayout_t) -> lt::cublasStatus_t;
        fn cublasLtMatmulDescCreate(*mut lt::cublasLtMatmulDesc_t, lt::cublasComputeType_t, lt::cudaDataType_t) -> lt::cublasStatus_t;
        fn cublasLtMatmulDescDestroy(lt::cublasLtMatmulDesc_t) -> lt::cublasStatus_t;
        fn cublasLtMatmulDescSetAttribute(lt::cublasLtMatmulDesc_t, lt::cublasLtMatmulDescAttributes_t, *const c_void, usize) -> lt::cublasStatus_t;
        fn cublasLtMatmulPreferenceCreate(*mut lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        fn cublasLtMatmulPreferenceDestroy(lt::cublasLtMatmulPreference_t) -> lt::cublasStatus_t;
        fn cublasLtMatmulPreferenceSetAttribute(lt::cublasLtMatmulPreference_t, lt::cublasLtMatmulPreferenceAttributes_t, *const c_void, usize) -> lt::cublasStatus_t;
        fn cublasLtMatmulAlgoGetHeuristic(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t, lt::cublasLtMatrixLayout_t,
            lt::cublasLtMatrixLayout_t, lt::cublasLtMatmulPreference_t, c_int, *mut lt::cublasLtMatmulHeuristicResult_t, *mut c_int,
        ) -> lt::cublasStatus_t;
        fn cublasLtMatmul(
            lt::cublasLtHandle_t, lt::cublasLtMatmulDesc_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t, *const c_void,
            lt::cublasLtMatrixLayout_t, *const c_void, *const c_void, lt::cublasLtMatrixLayout_t, *mut c_void, lt::cublasLtMatrixLayout_t,
            *const lt::cublasLtMatmulAlgo_t, *mut c_void, usize, lt::cudaStream_t,
        ) -> lt::cublasStatus_t;
    }
}

table! {
    /// What GPUs compute together.
    Nccl {
        fn ncclGetVersion(*mut c_int) -> nccl::ncclResult_t;
        fn ncclGetUniqueId(*mut nccl::ncclUniqueId) -> nccl::ncclResult_t;
        fn ncclCommInitRankConfig(*mut nccl::ncclComm_t, c_int, nccl::ncclUniqueId, c_int, *mut nccl::ncclConfig_t) -> nccl::ncclResult_t;
        fn ncclCommGetAsyncError(nccl::ncclComm_t, *mut nccl::ncclResult_t) -> nccl::ncclResult_t;
        fn ncclGetLastError(nccl::ncclComm_t) -> *const c_char;
        fn ncclAllReduce(*const c_void, *mut c_void, usize, nccl::ncclDataType_t, nccl::ncclRedOp_t, nccl::ncclComm_t, nccl::cudaStream_t) -> nccl::ncclResult_t;
        fn ncclAllGather(*const c_void, *mut c_void, usize, nccl::ncclDataType_t, nccl::ncclComm_t, nccl::cudaStream_t) -> nccl::ncclResult_t;
        fn ncclCommAbort(nccl::ncclComm_t) -> nccl::ncclResult_t;
    }
}

/// How a library is looked for.
struct Wanted {
    name: &'static str,
    /// For a driver of CUDA 13 or later, which runs code of 12 too.
    of_13: &'static [&'static str],
    /// For one of CUDA 12.
    of_12: &'static [&'static str],
    /// The wheels for both.
    packages: [&'static str; 2],
}

const NVRTC: Wanted = Wanted {
    name: "NVRTC",
    of_13: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    of_12: &["libnvrtc.so.12", "libnvrtc.so"],
    packages: ["nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"],
};
const LT: Wanted = Wanted {
    name: "cublasLt",
    of_13: &["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
    of_12: &["libcublasLt.so.12", "libcublasLt.so"],
    packages: ["nvidia-cublas", "nvidia-cublas-cu12"],
};
/// Its file is called the same for both.
const NCCL: Wanted = Wanted {
    name: "NCCL",
    of_13: &["libnccl.so.2", "libnccl.so"],
    of_12: &["libnccl.so.2", "libnccl.so"],
    packages: ["nvidia-nccl-cu13", "nvidia-nccl-cu12"],
};

impl Wanted {
    fn names(&self, cuda: i32) -> &'static [&'static str] {
        if cuda < 13 { self.of_12 } else { self.of_13 }
    }

    fn package(&self, cuda: i32) -> &'static str {
        self.packages[usize::from(cuda < 13)]
    }

    fn open(&self, cuda: i32) -> Result<Opened, LibraryError> {
        let names = self.names(cuda);
        Opened::first(names).ok_or_else(|| LibraryError::Missing {
            name: self.name,
            tried: names.join(", "),
            cuda: cuda.min(13),
            package: self.package(cuda),
        })
    }

    /// What was found, by the address of a function of it. Its code must be for a driver of CUDA `cuda`, if it says for which it is.
    fn found(
        &self,
        opened: &Opened,
        address: *const c_void,
        version: String,
        of_cuda: Option<i32>,
        cuda: i32,
    ) -> Result<LoadedLibrary, LibraryError> {
        let file = file_of(address).unwrap_or_else(|| "a place unknown".to_owned());
        let library = LoadedLibrary { name: self.name, version, asked: opened.asked, file };
        if of_cuda.is_some_and(|of_cuda| of_cuda > cuda) {
            return Err(LibraryError::TooNew { library, cuda, package: self.package(cuda) });
        }
        Ok(library)
    }
}

/// A table with what is known of its library.
struct Found<T> {
    table: T,
    library: LoadedLibrary,
}

type Once<T> = OnceLock<Result<Found<T>, LibraryError>>;

fn once<T: Sync + Send>(
    place: &'static Once<T>,
    find: impl FnOnce(i32) -> Result<Found<T>, LibraryError>,
) -> Result<&'static Found<T>, LibraryError> {
    place.get_or_init(|| find(cuda_of_driver().unwrap_or(13_000) / 1000)).as_ref().map_err(Clone::clone)
}

fn found_nvrtc() -> Result<&'static Found<Nvrtc>, LibraryError> {
    static PLACE: Once<Nvrtc> = OnceLock::new();
    once(&PLACE, |cuda| {
        let opened = NVRTC.open(cuda)?;
        let table = Nvrtc::of(&opened)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places for two numbers. It does not fail with them.
        let _ = unsafe { (table.nvrtcVersion)(&raw mut major, &raw mut minor) };
        let version = format!("{major}.{minor}");
        let library =
            NVRTC.found(&opened, table.nvrtcVersion as *const c_void, version, Some(major), cuda)?;
        Ok(Found { table, library })
    })
}

fn found_lt() -> Result<&'static Found<Lt>, LibraryError> {
    static PLACE: Once<Lt> = OnceLock::new();
    once(&PLACE, |cuda| {
        let opened = LT.open(cuda)?;
        let table = Lt::of(&opened)?;
        // SAFETY: it takes nothing. 130100 is 13.1.0, as 12.9 counts too.
        let number = unsafe { (table.cublasLtGetVersion)() };
        let (major, version) = (
            (number / 10_000) as i32,
            format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        );
        let library =
            LT.found(&opened, table.cublasLtGetVersion as *const c_void, version, Some(major), cuda)?;
        Ok(Found { table, library })
    })
}

fn found_nccl() -> Result<&'static Found<Nccl>, LibraryError> {
    static PLACE: Once<Nccl> = OnceLock::new();
    once(&PLACE, |cuda| {
        let opened = NCCL.open(cuda)?;
        let table = Nccl::of(&opened)?;
        let mut number = 0;
        // SAFETY: a place for a number. It does not fail with it.
        let _ = unsafe { (table.ncclGetVersion)(&raw mut number) };
        let version = nccl_words(u32::try_from(number).unwrap_or(0));
        let library = NCCL.found(&opened, table.ncclGetVersion as *const c_void, version, None, cuda)?;
        Ok(Found { table, library })
    })
}

/// A version of NCCL as people write it.
pub(super) fn nccl_words(version: u32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

pub(super) fn nvrtc_table() -> Result<&'static Nvrtc, LibraryError> {
    found_nvrtc().map(|found| &found.table)
}

pub(super) fn lt_table() -> Result<&'static Lt, LibraryError> {
    found_lt().map(|found| &found.table)
}

pub(super) fn nccl_table() -> Result<&'static Nccl, LibraryError> {
    found_nccl().map(|found| &found.table)
}

/// The CUDA that the driver speaks, as it counts: 13010 is 13.1. None where there is no driver.
pub(super) fn cuda_of_driver() -> Option<i32> {
    // SAFETY: loading the library runs nothing but its initialisers. Without this look the first call would panic.
    if !unsafe { driver::is_culib_present() } {
        return None;
    }
    let ask = || {
        let mut version = 0;
        // SAFETY: a place for a number; this call needs no initialisation.
        let asked = unsafe { driver::cuDriverGetVersion(&raw mut version) };
        (asked == driver::CUresult::CUDA_SUCCESS).then_some(version)
    };
    // A symbol that is missing panics in cudarc.
    catch_unwind(AssertUnwindSafe(ask)).ok().flatten()
}

/// The driver and the libraries that passes need, as they were found, with NVRTC or without it. Fails with the first that is not there, or
/// does not fit.
pub(super) fn libraries_for(nvrtc: bool) -> Result<Vec<LoadedLibrary>, LibraryError> {
    let mut all = Vec::new();
    if let Some(version) = cuda_of_driver() {
        // SAFETY: the library is there, and has what was called just now.
        let address = unsafe { driver::culib().get::<unsafe extern "C" fn()>(b"cuDriverGetVersion") };
        let file = address.ok().and_then(|address| file_of(*address as *const c_void));
        all.push(LoadedLibrary {
            name: "driver of CUDA",
            version: format!("{}.{}", version / 1000, version % 1000 / 10),
            asked: "libcuda.so.1",
            file: file.unwrap_or_else(|| "a place unknown".to_owned()),
        });
    }
    if nvrtc {
        all.push(found_nvrtc()?.library.clone());
    }
    all.push(found_lt()?.library.clone());
    Ok(all)
}

/// NCCL, as it was found.
///
/// # Errors
/// It is not there.
pub fn nccl_library() -> Result<LoadedLibrary, LibraryError> {
    found_nccl().map(|found| found.library.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tried_newest_first_and_none_that_the_driver_cannot_run() {
        assert_eq!(NVRTC.names(13), ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]);
        assert_eq!(NVRTC.names(14), NVRTC.names(13));
        assert_eq!(LT.names(12), ["libcublasLt.so.12", "libcublasLt.so"]);
        assert_eq!(NCCL.names(12), ["libnccl.so.2", "libnccl.so"]);
        let missing = Wanted {
            name: "X",
            of_13: &["libfaser-none.so.13"],
            of_12: &["libfaser-none.so.12"],
            packages: ["a", "b"],
        };
        let refusal = missing.open(12).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(
            refusal.contains("libfaser-none.so.12")
                && refusal.contains("CUDA 12 toolkit")
                && refusal.contains("pip install b"),
            "{refusal}"
        );
    }

    #[test]
    fn code_of_a_newer_cuda_than_the_drivers_is_refused_by_file() {
        let opened = Opened { handle: std::ptr::null_mut(), asked: "libnvrtc.so" };
        let found =
            |of_cuda, cuda| NVRTC.found(&opened, std::ptr::null(), "x".to_owned(), Some(of_cuda), cuda);
        assert!(
            found(13, 13).is_ok() && found(12, 13).is_ok() && found(12, 12).is_ok() && found(13, 14).is_ok()
        );
        let refusal = found(13, 12).map_err(|error| error.to_string()).expect_err("it is too new");
        assert!(refusal.contains("libnvrtc.so") && refusal.contains("nvidia-cuda-nvrtc-cu12"), "{refusal}");
        assert!(found(14, 13).is_err());
    }

    #[test]
    fn the_file_of_a_function_is_found() {
        let file = file_of(libc::strlen as *const c_void).expect("libc has a file");
        assert!(file.contains("libc"), "{file}");
    }
}
