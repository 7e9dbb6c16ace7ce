//! Builds all kernels, and the fake driver behind them, into one shared library, once for each content.

use faser_kernels::cuda::{File, HEADERS, Kernel, files};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SHIM: &str = include_str!("cuda_host.h");
/// The driver and the libraries beside it.
const DRIVER: &str = include_str!("driver.cpp");
const LIBRARIES: [(&str, &str); 3] = [
    ("nvrtc.cpp", include_str!("nvrtc.cpp")),
    ("blas.cpp", include_str!("blas.cpp")),
    ("nccl.cpp", include_str!("nccl.cpp")),
];
/// Kernels that checks have beside all others.
const CHECKS: &[File] = &[File::new("check", include_str!("../../gpu-check/cuda/check.cu"))];
/// Kernels that only tests have.
const PROBES: &str = include_str!("probes.cu");
pub(crate) const PROBE_NAMES: [&str; 2] = ["barrier_missing", "wait_missing"];
const FLAGS: [&str; 9] =
    ["-std=c++17", "-O1", "-fno-strict-aliasing", "-ffp-contract=off", "-fPIC", "-shared", "-x", "c++", "-"];

fn all_files() -> impl Iterator<Item = &'static File> {
    files().iter().chain(CHECKS)
}

fn all_kernels() -> impl Iterator<Item = Kernel> {
    all_files().flat_map(File::kernels)
}

/// One translation unit: each file in a namespace of its own, and a way in by name.
fn unit() -> String {
    let headers = HEADERS.map(|(_, text)| text).join("\n");
    let mut text = format!("#define FASER_HOST\n{SHIM}\n{headers}\n");
    for (name, body) in all_files().map(|file| (file.name, file.text)).chain([("probes", PROBES)]) {
        writeln!(text, "namespace file_{name} {{\n#line 1 \"{name}.cu\"\n{body}\n}}").expect("memory");
    }
    text.push_str(
        "extern \"C\" const char *faser_launch(const char *name, const void *args, size_t bytes, const unsigned *grid, \
         unsigned threads, size_t shared, int order) {\n",
    );
    let own = all_kernels().map(|kernel| (kernel.name, kernel.file));
    for (name, file) in own.chain(PROBE_NAMES.map(|name| (name, "probes"))) {
        writeln!(
            text,
            "if (!strcmp(name, \"{name}\")) return emu::launch(file_{file}::{name}, args, bytes, grid, threads, shared, order);"
        )
        .expect("memory");
    }
    text.push_str("return \"no such kernel\"; }\n");
    text.push_str("extern \"C\" size_t faser_args_size(const char *name) {\n");
    for kernel in all_kernels() {
        let (name, file) = (kernel.name, kernel.file);
        writeln!(text, "if (!strcmp(name, \"{name}\")) return emu::args_size(file_{file}::{name});")
            .expect("memory");
    }
    text.push_str("return 0; }\n#line 1 \"driver.cpp\"\n");
    text.push_str(DRIVER);
    for (name, library) in LIBRARIES {
        writeln!(text, "#line 1 \"{name}\"\n{library}").expect("memory");
    }
    text
}

/// The library, or why there is none on this machine.
///
/// # Panics
/// If the kernels do not compile.
pub(crate) fn library() -> Result<PathBuf, String> {
    // Tests run side by side.
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(build).clone()
}

fn build() -> Result<PathBuf, String> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("fibers are written for x86-64 Linux".into());
    }
    if !Command::new("g++").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return Err("g++ is not installed".into());
    }
    let source = unit();
    let mut hasher = DefaultHasher::new();
    (&source, FLAGS).hash(&mut hasher);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("cuda-host-{:016x}.so", hasher.finish()));
    if path.exists() {
        return Ok(path);
    }
    let text = folder.join(format!("cuda-host-{}.cpp", std::process::id()));
    let made = text.with_extension("so");
    std::fs::write(&text, source).expect("the target folder can be written");
    let input = std::fs::File::open(&text).expect("it was just written");
    let compiled =
        Command::new("g++").args(FLAGS).arg("-o").arg(&made).stdin(input).output().expect("g++ was there");
    assert!(compiled.status.success(), "g++:\n{}", String::from_utf8_lossy(&compiled.stderr));
    std::fs::rename(&made, &path).expect("the target folder can be written");
    std::fs::remove_file(&text).expect("it was ours");
    Ok(path)
}
