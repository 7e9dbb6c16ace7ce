//! The sources, and the table of kernels in them.

/// Stands before every file.
pub const PRELUDE: &str = include_str!("../../cuda/prelude.cuh");

/// A source file: one op.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name in kernels/cuda, without ending.
    pub name: &'static str,
    /// Its text, without the prelude.
    pub text: &'static str,
    kernels: &'static [(&'static str, u32)],
}

impl File {
    /// A file that is not in the table; it lists no kernels.
    #[must_use]
    pub const fn new(name: &'static str, text: &'static str) -> File {
        File { name, text, kernels: &[] }
    }

    /// What is compiled: prelude and text.
    #[must_use]
    pub fn source(&self) -> String {
        format!("{PRELUDE}#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }

    /// Its kernels.
    pub fn kernels(&self) -> impl Iterator<Item = Kernel> + '_ {
        self.kernels.iter().map(|&(name, most_registers)| Kernel { name, file: self.name, most_registers })
    }
}

/// A kernel, by the name it has in its cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub file: &'static str,
    /// More registers of a thread than this are a mistake: fewer warps would hide the memory's latency.
    pub most_registers: u32,
}

macro_rules! files {
    ($($file:literal: $($kernel:literal $registers:literal),+;)+) => {
        &[$(File {
            name: $file,
            text: include_str!(concat!("../../cuda/", $file, ".cu")),
            kernels: &[$(($kernel, $registers)),+],
        }),+]
    };
}

const FILES: &[File] = files! {
    "embed": "embed_f32" 32, "embed_bf16" 32;
    "rms_norm": "rms_norm_f32" 40, "rms_norm_bf16" 40;
    "silu_mul": "silu_mul_f32" 40, "silu_mul_bf16" 40;
    "qkv": "qkv_f32" 64, "qkv_bf16" 64;
    "gather_rows": "gather_rows" 32;
    "compact_rows": "compact_rows" 48;
    "attention": "attention_f32" 64, "attention_bf16" 64;
    "attention_mma": "attention_mma_32_16" 128, "attention_mma_32_32" 128, "attention_mma_32_64" 128,
        "attention_mma_64_16" 168, "attention_mma_64_32" 168, "attention_mma_64_64" 168,
        "attention_mma_128_16" 200, "attention_mma_128_32" 200, "attention_mma_128_64" 200;
    "merge_splits": "merge_splits_f32" 48, "merge_splits_bf16" 48;
    "matmul": "matmul_8_bf16" 64, "matmul_16_bf16" 80, "matmul_f32" 48;
    "score_tokens": "score_tokens_f32" 48, "score_tokens_bf16" 48;
    "count_tokens": "count_tokens" 32;
    "adjust_logits": "adjust_logits" 48;
    "logit_stats": "logit_stats" 40;
    "confidence": "confidence" 40;
    "nucleus": "nucleus" 48;
    "draw_tokens": "draw_tokens" 48, "pick_tokens" 32;
    "top_tokens": "top_tokens" 64;
    "logprobs": "logprobs" 48;
    "gate": "gate_rows" 32, "gate_test" 48;
    "shed_rows": "shed_rows" 48;
    "draft_step": "draft_step" 40;
};

/// Kernels that serve nothing: checks of a GPU are made of them.
const CHECKS: &[File] = files! {
    "check": "check_sms" 32, "check_copy" 64, "check_read" 64, "check_fill" 40, "check_noise" 40, "check_wait" 32,
        "check_stray" 32;
};

/// The files that checks of a GPU have beside all others; no GPU loads them to serve.
#[must_use]
pub fn check_files() -> &'static [File] {
    CHECKS
}

/// All files.
#[must_use]
pub fn files() -> &'static [File] {
    FILES
}

/// The file of that name, those of checks included.
#[must_use]
pub fn file(name: &str) -> Option<&'static File> {
    FILES.iter().chain(CHECKS).find(|file| file.name == name)
}

/// All kernels.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    FILES.iter().flat_map(File::kernels)
}

/// The kernel of that name, those of checks included.
#[must_use]
pub fn kernel(name: &str) -> Option<Kernel> {
    FILES.iter().chain(CHECKS).flat_map(File::kernels).find(|kernel| kernel.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_kernel_of_every_file() {
        let files = || FILES.iter().chain(CHECKS);
        let mut all: Vec<&str> = files().flat_map(File::kernels).map(|kernel| kernel.name).collect();
        for file in files() {
            // KERNEL(threads) name(Args a)
            let written = file.text.lines().filter_map(|line| line.strip_prefix("KERNEL("));
            let written: Vec<&str> =
                written.filter_map(|rest| rest.split_once(") ")?.1.split('(').next()).collect();
            let listed: Vec<&str> = file.kernels().map(|kernel| kernel.name).collect();
            assert_eq!(written, listed, "{}.cu", file.name);
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a name twice");
    }

    #[test]
    fn files_are_small_include_nothing_and_keep_ptx_in_the_prelude() {
        let files = FILES.iter().chain(CHECKS).map(|file| (file.name, file.text));
        for (name, text) in files.chain([("prelude", PRELUDE)]) {
            assert!(text.starts_with("// "), "{name}: the first line says what it is");
            assert!(text.lines().count() <= 400, "{name}");
            assert!(!text.contains("#include"), "{name} includes");
            assert!(name == "prelude" || (!text.contains("asm") && !text.contains("extern")), "{name}");
        }
    }
}
