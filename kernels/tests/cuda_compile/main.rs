//! Every CUDA kernel compiles for the architectures we serve on, within its bound of registers, and to the instructions that it was written
//! for. Needs NVRTC, and for the instructions nvdisasm; no GPU.

mod occupancy;
mod sass;

use faser_kernels::cuda::{
    ARCHS, AttentionArgs, Compiler, Cubin, Element, File, Kernel, KernelUsage, KvElement, LibraryError,
    NvrtcError, file, files,
};
use sass::{Sass, disassemble, is_local, is_mma, is_weight};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// Kernels that checks of a GPU have beside all others.
const CHECKS: &[File] = &[File::new("check", include_str!("../../gpu-check/cuda/check.cu"))];

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

/// A file, compiled for an architecture.
struct Built {
    arch: &'static str,
    file: &'static File,
    cubin: Cubin,
}

/// All files for all architectures, compiled once for all tests; `None` where there is no NVRTC.
fn built(test: &str) -> Option<&'static [Built]> {
    static ALL: OnceLock<Vec<Built>> = OnceLock::new();
    compiler(test, ARCHS[0], None)?;
    let all = ALL.get_or_init(|| {
        let work = ARCHS.iter().flat_map(|arch| files().iter().chain(CHECKS).map(move |file| (*arch, file)));
        let (work, done) = (Mutex::new(work), Mutex::new(Vec::new()));
        let next = || work.lock().expect("no thread panicked").next();
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while let Some((arch, file)) = next() {
                        let cubin = Compiler::new(arch, None).and_then(|compiler| compiler.compile(file));
                        let cubin = cubin.unwrap_or_else(|error| panic!("{error}"));
                        done.lock().expect("no thread panicked").push(Built { arch, file, cubin });
                    }
                });
            }
        });
        let mut done = done.into_inner().expect("no thread panicked");
        done.sort_by_key(|built| ARCHS.iter().position(|arch| *arch == built.arch));
        done
    });
    Some(all)
}

/// What the kernel asks for at its launch, in bytes.
fn dynamic_bytes(kernel: &str) -> u32 {
    let Some(shape) = kernel.strip_prefix("attention_mma_") else { return 0 };
    let dim = shape.split('_').next().and_then(|dim| dim.parse().ok()).expect("its head");
    let kv = if shape.ends_with("fp8") { KvElement::Fp8 } else { KvElement::Element(Element::Bf16) };
    AttentionArgs::shared_bytes(Element::Bf16, kv, dim, if shape.ends_with("two") { 2 } else { 3 })
}

#[test]
fn every_kernel_compiles_within_its_bounds() {
    let Some(built) = built("every_kernel") else { return };
    let mut table = format!(
        "{:24} {:6} {:>9} {:>12} {:>11} {:>12}\n",
        "kernel", "arch", "registers", "shared bytes", "spill bytes", "blocks on SM"
    );
    let mut faults = Vec::new();
    for Built { arch, file, cubin } in built {
        assert_eq!(cubin.bytes[..4], *b"\x7fELF", "{}", file.name);
        assert!(!cubin.log.contains("warning"), "{}: {}", file.name, cubin.log);
        let found = cubin.usages();
        assert_eq!(found.len(), file.kernels().count(), "{}", file.name);
        for kernel in file.kernels() {
            let usage = found.iter().find(|usage| usage.kernel == kernel.name);
            let usage = usage.unwrap_or_else(|| panic!("ptxas says nothing of {}", kernel.name));
            let blocks = blocks(arch, kernel, usage);
            let KernelUsage { registers, shared_bytes, spill_bytes, .. } = usage;
            writeln!(
                table,
                "{:24} {arch:6} {registers:>9} {shared_bytes:>12} {spill_bytes:>11} {blocks:>12}",
                kernel.name
            )
            .expect("memory");
            // Where three stages are too many, attention takes two.
            let fits = blocks > 0 || dynamic_bytes(kernel.name) > occupancy::most_shared_bytes(arch);
            if *spill_bytes > 0 || *registers == 0 || *registers > kernel.most_registers || !fits {
                faults.push(format!(
                    "{arch} {usage:?}, {blocks} blocks, at most {} registers",
                    kernel.most_registers
                ));
            }
        }
    }
    say(&table);
    assert!(faults.is_empty(), "{faults:#?}");
}

fn blocks(arch: &str, kernel: Kernel, usage: &KernelUsage) -> u32 {
    occupancy::blocks(arch, kernel.threads, usage.registers, usage.shared_bytes + dynamic_bytes(kernel.name))
}

/// Products on tensor cores by their names: 128-bit loads of weights that a thread has under way when the loop over the inputs begins to multiply,
/// at least, of how many in a round, and blocks on an SM, at least. A load of 4-bit weights has four times as many of them.
const PRODUCTS: [(&[&str], usize, usize, u32); 10] = [
    (&["matmul_8_bf16", "matmul_8_activate", "matmul_8_norm", "matmul_8_heads"], 7, 8, 3),
    (&["experts_8", "experts_activate_8"], 8, 8, 3),
    (&["matmul_16_bf16", "matmul_16_activate"], 4, 4, 3),
    // On 12.0 ptxas begins to multiply early, for want of registers.
    (&["matmul_16_heads"], 2, 4, 3),
    (&["experts_32", "experts_activate_32"], 4, 4, 3),
    (
        &[
            "matmul_8_int4",
            "matmul_8_int4_activate",
            "matmul_8_int4_norm",
            "matmul_8_int4_heads",
            "matmul_16_int4",
            "matmul_16_int4_activate",
            "matmul_16_int4_heads",
        ],
        2,
        2,
        3,
    ),
    (&["experts_8_int4", "experts_activate_8_int4"], 2, 2, 3),
    (&["experts_32_int4", "experts_activate_32_int4"], 2, 2, 2),
    (
        &[
            "matmul_8_fp8",
            "matmul_8_fp8_activate",
            "matmul_8_fp8_norm",
            "matmul_8_fp8_heads",
            "matmul_16_fp8",
            "matmul_16_fp8_activate",
            "matmul_16_fp8_heads",
            "experts_8_fp8",
            "experts_activate_8_fp8",
            "matmul_8_int8",
            "matmul_8_int8_activate",
            "matmul_8_int8_norm",
            "matmul_8_int8_heads",
            "matmul_16_int8_activate",
            "experts_8_int8",
            "experts_activate_8_int8",
        ],
        4,
        4,
        3,
    ),
    (
        &[
            "experts_32_fp8",
            "experts_activate_32_fp8",
            "matmul_16_int8",
            "matmul_16_int8_heads",
            "experts_32_int8",
            "experts_activate_32_int8",
        ],
        4,
        4,
        2,
    ),
];

#[test]
fn kernels_are_the_instructions_that_they_were_written_for() {
    let Some(built) = built("kernels_are_the_instructions") else { return };
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let mut faults = Vec::new();
    let mut table = format!(
        "{:24} {:6} {:>12} {:>8} {:>16} {:>17}\n",
        "kernel", "arch", "instructions", "products", "of a round's", "weights before it"
    );
    let (mut products, mut through_shared) = (0, 0);
    for Built { arch, file, cubin } in built {
        let at = folder.join(format!("{}-{arch}-{}.cubin", file.name, std::process::id()));
        let Some(found) = disassemble(&cubin.bytes, &at) else {
            let missing =
                "nvdisasm is not found (`pip install nvidia-cuda-nvdisasm`, and its bin folder in PATH)";
            return faser_skipped::skip("cuda_compile kernels_are_the_instructions", missing);
        };
        assert_eq!(found.len(), file.kernels().count(), "{}", file.name);
        for sass in &found {
            let mut fault = |what: String| faults.push(format!("{arch} {}: {what}", sass.kernel));
            if sass.names.len() < 8 {
                fault("it was not read".to_owned());
            }
            let local = sass.count(is_local);
            if local > 0 {
                fault(format!("{local} loads and stores of local memory"));
            }
            let spins = sass.count(|name| name.starts_with("ATOMS.CAST.SPIN"));
            if spins > 0 {
                fault(format!("{spins} atomic additions in shared memory that spin"));
            }
            // Those of 4 bytes, of which a warp writes a part of each sector, took an H200 four times as long.
            let stores = |width: &str| sass.count(|name| name.starts_with("STG") && name.contains(width));
            if file.name == "dequantise" && (stores(".128") < 4 || stores(".128") < stores("")) {
                fault("rows are not written 16 bytes at a time".to_owned());
            }
            if let Some((_, ahead, of, least)) =
                PRODUCTS.iter().find(|(names, ..)| names.contains(&&*sass.kernel))
            {
                products += 1;
                for fault_of in product_faults(sass, *ahead, *of) {
                    fault(fault_of);
                }
                let usages = cubin.usages();
                let usage = usages.iter().find(|usage| usage.kernel == sass.kernel).expect("ptxas told");
                let kernel =
                    file.kernels().find(|kernel| kernel.name == sass.kernel).expect("it is of the file");
                if blocks(arch, kernel, usage) < *least {
                    fault(format!("{} blocks on an SM", blocks(arch, kernel, usage)));
                }
                writeln!(table, "{}", product_line(sass, arch)).expect("memory");
            } else if sass.kernel.starts_with("attention_mma") || sass.kernel.starts_with("matmul_64") {
                through_shared += 1;
                let wide = |name: &str| name.starts_with("LDGSTS") && name.contains(".128");
                if sass.count(wide) == 0 || sass.count(|name| name.starts_with("LDGSTS") && !wide(name)) > 0 {
                    fault("its rows do not come by copies of 16 bytes in the background".to_owned());
                }
                let read = if sass.kernel.starts_with("matmul") { "LDS.128" } else { "LDSM" };
                if sass.count(|name| name.starts_with(read)) == 0 || sass.count(is_mma) == 0 {
                    fault(format!("its tiles are not read by {read}, or not multiplied on tensor cores"));
                }
            } else if sass.count(is_mma) > 0 {
                fault("a product that this test does not know".to_owned());
            }
        }
    }
    say(&table);
    assert!(faults.is_empty(), "{faults:#?}");
    let named: usize = PRODUCTS.iter().map(|(names, ..)| names.len()).sum();
    assert_eq!((products, through_shared), (named * ARCHS.len(), 29 * ARCHS.len()));
}

/// Weights that are asked for before the first product of a loop.
fn weights_ahead(names: &[String]) -> usize {
    names.iter().take_while(|name| !is_mma(name)).filter(|name| is_weight(name)).count()
}

fn product_faults(sass: &Sass, ahead: usize, of: usize) -> Vec<String> {
    let Some(round) = sass.k_loop() else { return vec!["it has no loop over its inputs".to_owned()] };
    let mut faults = Vec::new();
    let (found, all) = (weights_ahead(round), round.iter().filter(|name| is_weight(name)).count());
    if found < ahead || all != of {
        faults.push(format!(
            "{found} of {all} loads of weights before the first product, in the place of {ahead} of {of}"
        ));
    }
    for names in sass.inner_products() {
        for wrong in names.iter().filter(|name| name.starts_with("BAR") || is_local(name)) {
            faults.push(format!("{wrong} in a loop over its inputs"));
        }
    }
    faults
}

fn product_line(sass: &Sass, arch: &str) -> String {
    let round = sass.k_loop().unwrap_or_default();
    let (multiplied, weights) = (
        round.iter().filter(|name| is_mma(name)).count(),
        round.iter().filter(|name| is_weight(name)).count(),
    );
    format!(
        "{:24} {arch:6} {:>12} {multiplied:>8} {weights:>16} {:>17}",
        sass.kernel,
        sass.names.len(),
        weights_ahead(round)
    )
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
