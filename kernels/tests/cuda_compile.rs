//! Every CUDA kernel compiles for the architectures we serve on, without spills and within its bound of registers. Needs NVRTC, no GPU.

use faser_kernels::cuda::{Compiler, File, LibraryError, NvrtcError, file, files};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// Kernels that checks of a GPU have beside all others.
const CHECKS: &[File] = &[File::new("check", include_str!("../gpu-check/cuda/check.cu"))];
const ARCHS: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

/// Those that the bounds of registers were chosen for.
const BOUNDED: [&str; 2] = ["sm_80", "sm_90"];
/// Spills of a few bytes that stay until a GPU of that architecture can tell what mending them costs.
const SPILLS: [(&str, &str); 3] =
    [("sm_120", "attention_bf16"), ("sm_120", "attention_f32"), ("sm_120", "matmul_8_bf16")];

/// Past the harness, which shows nothing of tests that pass.
fn say(text: &str) {
    writeln!(std::io::stderr(), "\n{text}").expect("stderr");
}

/// A compiler; `None`, with the reason said so that it can be counted, where NVRTC is not.
fn compiler(test: &str, arch: &str, cache: Option<&Path>) -> Option<Compiler> {
    match Compiler::new(arch, cache) {
        Ok(compiler) => Some(compiler),
        Err(error @ NvrtcError::Library(LibraryError::Missing { .. })) => {
            faser_skipped::skip(&format!("cuda_compile {test}"), error);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_kernel_compiles_without_spills() {
    let mut table = format!(
        "{:24} {:6} {:>9} {:>12} {:>11}\n",
        "kernel", "arch", "registers", "shared bytes", "spill bytes"
    );
    let mut faults = Vec::new();
    for arch in ARCHS {
        let Some(compiler) = compiler("every_kernel", arch, None) else { return };
        let mut found = Vec::new();
        let all_files = || files().iter().chain(CHECKS);
        for file in all_files() {
            let cubin = compiler.compile(file).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(cubin.bytes[..4], *b"\x7fELF", "{}", file.name);
            assert!(!cubin.log.contains("warning"), "{}: {}", file.name, cubin.log);
            found.extend(cubin.usages());
        }
        for kernel in all_files().flat_map(File::kernels) {
            let usage = found.iter().find(|usage| usage.kernel == kernel.name);
            let usage = usage.unwrap_or_else(|| panic!("ptxas says nothing of {}", kernel.name));
            writeln!(
                table,
                "{:24} {arch:6} {:>9} {:>12} {:>11}",
                kernel.name, usage.registers, usage.shared_bytes, usage.spill_bytes
            )
            .expect("memory");
            let spills = usage.spill_bytes > 0 && !SPILLS.contains(&(arch, kernel.name));
            let crowded = BOUNDED.contains(&arch) && usage.registers > kernel.most_registers;
            if spills || usage.registers == 0 || crowded {
                faults.push(format!("{arch} {usage:?}, at most {} registers", kernel.most_registers));
            }
        }
        assert_eq!(found.len(), all_files().flat_map(File::kernels).count());
    }
    say(&table);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn cubins_are_kept_by_what_went_in() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cubins-{}", std::process::id()));
    let Some(compiler) = compiler("cubins_are_kept", "sm_90", Some(&folder)) else { return };
    let embed = file("embed").unwrap();
    let first = compiler.compile(embed).unwrap();
    let kept = |ending: &str| {
        let all = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|e| e == ending)).collect::<Vec<_>>()
    };
    let [cubin] = kept("cubin").try_into().unwrap();
    assert_eq!(std::fs::read(&cubin).unwrap(), first.bytes);
    // What lies there is what is used.
    std::fs::write(&cubin, b"kept").unwrap();
    assert_eq!(compiler.compile(embed).unwrap().bytes, b"kept");
    // Another source, or another architecture, is another cubin.
    let other = File::new("embed", "// other\nKERNEL(32, 32) other() {}\n");
    assert_ne!(compiler.compile(&other).unwrap().bytes, b"kept");
    let older = Compiler::new("sm_80", Some(&folder)).unwrap();
    assert_ne!(older.compile(embed).unwrap().bytes, b"kept");
    assert_eq!(kept("cubin").len(), 3);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_does_not_compile_says_where() {
    let Some(compiler) = compiler("a_file_that_does_not_compile", "sm_90", None) else { return };
    let bad = File::new("bad", "// bad\nKERNEL(32, 32) bad() { missing(); }\n");
    let refusal = compiler.compile(&bad).unwrap_err().to_string();
    assert!(
        refusal.contains("bad.cu") && refusal.contains("missing") && refusal.contains("(2)"),
        "{refusal}"
    );
    let unknown = Compiler::new("sm_1", None).unwrap().compile(&files()[0]).unwrap_err().to_string();
    assert!(unknown.contains("NVRTC"), "{unknown}");
}

#[test]
fn without_the_library_it_is_skipped_with_the_reason() {
    if std::env::var_os("LD_LIBRARY_PATH").is_none() {
        return; // the other tests say it themselves
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_file_that_does_not_compile_says_where"])
        .env_remove("LD_LIBRARY_PATH")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A machine with CUDA in the system's own folders has it all the same.
    assert!(said.is_empty() || said.contains("skipped: ") && said.contains("NVRTC is not found"), "{said}");
}
