//! Which cubins a GPU gets: those in this binary, where it was built with some (`FASER_CUBINS`, see kernels/build.rs), or what NVRTC compiles now.

use super::compile::{Compiler, Cubin, NvrtcError, name_of};
use super::libraries::{LibraryError, LoadedLibrary, cuda_of_driver, libraries_for};
use super::sources::{File, files};
use std::fmt;
use std::path::{Path, PathBuf};

/// The architectures that are served, for which packages have cubins. Others are compiled for at start-up.
pub const ARCHS: [&str; 8] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121"];

// TABLE: names and cubins. MADE_BY: major and minor of the NVRTC that made them.
include!(concat!(env!("OUT_DIR"), "/prebuilt.rs"));

/// The cubins in this binary.
const PREBUILT: Prebuilt = Prebuilt { table: TABLE, made_by: MADE_BY };

struct Prebuilt {
    table: &'static [(&'static str, &'static [u8])],
    made_by: (i32, i32),
}

impl Prebuilt {
    /// That of a file, from this very source. A driver takes what a CUDA of its own major version, or of an older one, has made.
    fn find(&self, file: &File, arch: &str, cuda: i32) -> Option<&'static [u8]> {
        if self.table.is_empty() || self.made_by.0 > cuda / 1000 {
            return None;
        }
        let wanted = prebuilt_name(file, arch);
        self.table.iter().find(|(name, _)| *name == wanted).map(|(_, bytes)| *bytes)
    }
}

/// The name, without ending, by which a cubin of that file is found in `FASER_CUBINS`.
#[must_use]
pub fn prebuilt_name(file: &File, arch: &str) -> String {
    name_of(file, arch, "prebuilt")
}

/// The CUDA of the driver, as it counts. Without a driver that of the newest libraries.
fn cuda() -> i32 {
    cuda_of_driver().unwrap_or(13_000)
}

/// Whether this binary has all kernels for that architecture, so that NVRTC is not needed.
#[must_use]
pub fn are_prebuilt(arch: &str) -> bool {
    let cuda = cuda();
    files().iter().all(|file| PREBUILT.find(file, arch, cuda).is_some())
}

/// The driver and the libraries that passes on a GPU of that architecture need, as they were found: NVRTC only where kernels are not
/// prebuilt.
///
/// # Errors
/// The first library that is not there, or does not fit.
pub fn libraries(arch: &str) -> Result<Vec<LoadedLibrary>, LibraryError> {
    libraries_for(!are_prebuilt(arch))
}

/// Where the cubins of a GPU come from; and then, as text, where they came from.
pub(super) struct Cubins {
    arch: String,
    cuda: i32,
    cache: Option<PathBuf>,
    /// Once it was needed.
    compiler: Option<Compiler>,
    prebuilt: usize,
    compiled: usize,
    /// Prebuilt ones that the driver would not load, and that were compiled then.
    refused: usize,
}

impl Cubins {
    pub(super) fn new(arch: &str, cache: Option<&Path>) -> Cubins {
        let cache = cache.map(Path::to_path_buf);
        Cubins {
            arch: arch.to_owned(),
            cuda: cuda(),
            cache,
            compiler: None,
            prebuilt: 0,
            compiled: 0,
            refused: 0,
        }
    }

    pub(super) fn cubin(&mut self, file: &File) -> Result<Vec<u8>, NvrtcError> {
        if let Some(bytes) = PREBUILT.find(file, &self.arch, self.cuda) {
            self.prebuilt += 1;
            return Ok(bytes.to_vec());
        }
        self.compiled(file)
    }

    /// In place of a prebuilt one that the driver would not load; none if it was not prebuilt, or if there is no NVRTC.
    pub(super) fn instead(&mut self, file: &File) -> Option<Vec<u8>> {
        PREBUILT.find(file, &self.arch, self.cuda)?;
        let bytes = self.compiled(file).ok()?;
        self.prebuilt -= 1;
        self.refused += 1;
        Some(bytes)
    }

    fn compiled(&mut self, file: &File) -> Result<Vec<u8>, NvrtcError> {
        let compiler = match self.compiler.take() {
            Some(compiler) => compiler,
            None => Compiler::new(&self.arch, self.cache.as_deref())?,
        };
        let Cubin { bytes, .. } = self.compiler.insert(compiler).compile(file)?;
        self.compiled += 1;
        Ok(bytes)
    }
}

impl fmt::Display for Cubins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernels for {}: ", self.arch)?;
        if self.prebuilt > 0 {
            let (major, minor) = PREBUILT.made_by;
            write!(f, "{} files prebuilt by NVRTC {major}.{minor}", self.prebuilt)?;
        }
        if self.prebuilt > 0 && self.compiled > 0 {
            write!(f, ", ")?;
        }
        if let (Some(compiler), 1..) = (&self.compiler, self.compiled) {
            let (major, minor) = compiler.version();
            let kept = if self.cache.is_some() { ", or kept since then" } else { "" };
            write!(f, "{} files compiled by NVRTC {major}.{minor}{kept}", self.compiled)?;
        }
        if self.refused > 0 {
            write!(f, " ({} of them prebuilt too, but the driver would not load that)", self.refused)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_made_of_this_source_for_this_gpu_and_driver_is_taken() {
        const FILE: File = File::new("one", "// one\n");
        let name: &'static str = prebuilt_name(&FILE, "sm_90").leak();
        let table: &'static [(&str, &[u8])] = vec![("other", b"other".as_slice()), (name, b"mine")].leak();
        let prebuilt = Prebuilt { table, made_by: (12, 9) };
        for cuda in [12_040, 12_090, 13_010] {
            assert_eq!(prebuilt.find(&FILE, "sm_90", cuda), Some(b"mine".as_slice()), "{cuda}");
        }
        assert_eq!(prebuilt.find(&FILE, "sm_89", 13_000), None);
        assert_eq!(prebuilt.find(&File::new("one", "// changed\n"), "sm_90", 13_000), None);
        assert_eq!(Prebuilt { table, made_by: (13, 0) }.find(&FILE, "sm_90", 12_090), None);
    }

    #[test]
    fn where_they_came_from_is_said() {
        let cubins = Cubins { prebuilt: 3, ..Cubins::new("sm_90", None) };
        let (major, minor) = MADE_BY;
        assert_eq!(
            cubins.to_string(),
            format!("kernels for sm_90: 3 files prebuilt by NVRTC {major}.{minor}")
        );
    }
}
