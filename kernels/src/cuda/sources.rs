//! The sources, and the table of kernels in them.

/// What stands before every file, by name: the prelude of all, products of few rows, matrices in few bits, and what products and attention do of
/// the ops that follow them.
pub const HEADERS: [(&str, &str); 4] = [
    ("prelude", include_str!("../../cuda/prelude.cuh")),
    ("tiles", include_str!("../../cuda/tiles.cuh")),
    ("records", include_str!("../../cuda/records.cuh")),
    ("tails", include_str!("../../cuda/tails.cuh")),
];

/// A source file: one op.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// Its name in kernels/cuda, without ending.
    pub name: &'static str,
    /// Its text, without the prelude.
    pub text: &'static str,
}

impl File {
    /// A file that is not in the table.
    #[must_use]
    pub const fn new(name: &'static str, text: &'static str) -> File {
        File { name, text }
    }

    /// What is compiled: what stands before, and the text.
    #[must_use]
    pub fn source(&self) -> String {
        let mut source = String::new();
        for (name, text) in HEADERS {
            source += &format!("#line 1 \"{name}.cuh\"\n{text}");
        }
        source + &format!("#line 1 \"{}.cu\"\n{}", self.name, self.text)
    }

    /// Its kernels: lines that begin with `KERNEL(threads, registers) name(`, or with blocks of an SM as a third number.
    pub fn kernels(&self) -> impl Iterator<Item = Kernel> + use<> {
        let File { name: file, text } = *self;
        text.lines().filter_map(move |line| {
            let (bounds, rest) = line.strip_prefix("KERNEL(")?.split_once(") ")?;
            let mut bounds = bounds.split(", ");
            let (threads, most_registers) = (bounds.next()?.parse().ok()?, bounds.next()?.parse().ok()?);
            Some(Kernel { name: rest.split('(').next()?, file, threads, most_registers })
        })
    }
}

/// A kernel, by the name it has in its cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub file: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// More registers of a thread than this are a mistake: fewer warps would hide the memory's latency.
    pub most_registers: u32,
}

macro_rules! files {
    ($($name:ident ($($slot:ident)?) [$($file:literal),*] [$($module:ident::$case:ident),*];)+) => {
        &[$($(File::new($file, include_str!(concat!("../../cuda/", $file, ".cu"))),)*)+]
    };
}

/// Those of [`each_op`](crate::each_op): what a file declares of kernels is read from it.
const FILES: &[File] = crate::each_op!(files);

/// All files.
#[must_use]
pub fn files() -> &'static [File] {
    FILES
}

/// The file of that name.
#[must_use]
pub fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.name == name)
}

/// All kernels.
pub fn kernels() -> impl Iterator<Item = Kernel> {
    FILES.iter().flat_map(File::kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels that serve nothing: checks of a GPU are made of them.
    const CHECKS: &[File] = &[File::new("check", include_str!("../../gpu-check/cuda/check.cu"))];

    #[test]
    fn every_kernel_has_a_name_of_its_own_and_its_bounds() {
        let files = || FILES.iter().chain(CHECKS);
        let mut all: Vec<&str> = files().flat_map(File::kernels).map(|kernel| kernel.name).collect();
        let written: usize = files().map(|file| file.text.matches("KERNEL(").count()).sum();
        let count = all.len();
        assert_eq!(count, written, "`KERNEL(threads, registers) name(` at the beginning of a line");
        assert!(files().flat_map(File::kernels).all(|kernel| (16..=255).contains(&kernel.most_registers)));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "a name twice");
    }

    #[test]
    fn merges_have_room_for_all_splits() {
        let most = format!("MOST_SPLITS = {};", crate::cuda::ATTENTION_SPLITS);
        assert!(HEADERS.iter().any(|(_, text)| text.contains(&most)), "{most}");
    }

    #[test]
    fn files_are_small_include_nothing_and_keep_ptx_in_the_prelude() {
        let files = FILES.iter().chain(CHECKS).map(|file| (file.name, file.text));
        for (name, text) in files.chain(HEADERS) {
            assert!(text.starts_with("// "), "{name}: the first line says what it is");
            assert!(text.lines().count() <= 400, "{name}");
            assert!(!text.contains("#include"), "{name} includes");
            assert!(name == "prelude" || (!text.contains("asm") && !text.contains("extern")), "{name}");
        }
    }
}
