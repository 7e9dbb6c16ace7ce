//! Which device a pair runs on: what the config asks for against what is there; and what that device is, in words.

use std::fmt;

use faser_actors::{CudaError, GpuInfo, Isa, libraries, nccl_version, probe_one};
use faser_topology::CpuDevice;

use crate::{Config, ConfigError, DeviceKind};

/// A device, not opened yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chosen {
    /// The CPU, and why it is not a GPU if the config left that open.
    Cpu {
        /// Why there is no GPU.
        why: Option<String>,
    },
    /// These GPUs: those of a replica's ranks stand together.
    Gpus(Vec<GpuInfo>),
}

/// The device that a pair runs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Machine {
    /// Cores of this host.
    Cpu {
        /// What was found.
        device: CpuDevice,
        /// The instruction set of the kernels.
        isa: Isa,
        /// Whether the environment chose it (`FASER_ISA`), and not the config or what is fastest.
        forced: bool,
        /// Why it is not a GPU, if that was left open.
        why: Option<String>,
    },
    /// GPUs, all alike.
    Gpus {
        /// The first.
        first: GpuInfo,
        /// The numbers of all, that of the first too.
        ordinals: Vec<usize>,
        /// The processor that launches on them.
        host: String,
    },
}

impl Machine {
    /// As `device.kind` names it.
    pub fn kind(&self) -> String {
        match self {
            Machine::Cpu { .. } => "cpu".to_owned(),
            Machine::Gpus { ordinals, .. } => {
                let numbers: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
                format!("cuda:{}", numbers.join(","))
            }
        }
    }

    /// What it calls itself.
    pub fn name(&self) -> &str {
        match self {
            Machine::Cpu { device, .. } => &device.name,
            Machine::Gpus { first, .. } => &first.name,
        }
    }
}

/// On one line: kind, name, size.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, ", self.kind(), self.name())?;
        match self {
            Machine::Cpu { device, isa, forced, .. } => {
                let by = if *forced { format!(" by {}", Isa::FORCED_BY) } else { String::new() };
                write!(f, "{} cores, {isa}{by}", device.cores.len())
            }
            Machine::Gpus { first, ordinals, .. } => {
                let (major, minor) = first.capability;
                let each = if ordinals.len() > 1 { "each with " } else { "" };
                write!(f, "{each}{} SMs of compute capability {major}.{minor}", first.sms)
            }
        }
    }
}

/// Chooses. Asks the machine only if the config does not settle it.
///
/// # Errors
/// A GPU was named that cannot be used, or weights or KV are of a kind that the CPU has not got; says what is missing.
pub fn choose(config: &Config) -> Result<Chosen, ConfigError> {
    choose_with(config, |ordinal| {
        let gpu = probe_one(ordinal)?;
        libraries(&gpu.arch())?;
        if config.device.tensor_parallel > 1 {
            nccl_version()?;
        }
        Ok(gpu)
    })
}

fn choose_with(
    config: &Config,
    probe: impl Fn(usize) -> Result<GpuInfo, CudaError>,
) -> Result<Chosen, ConfigError> {
    let ordinals = config.device.gpus();
    let usable = || {
        config.fits_gpus()?;
        let gpus = ordinals.iter().map(|gpu| probe(*gpu)).collect::<Result<Vec<GpuInfo>, _>>()?;
        alike(&gpus).map(|()| gpus)
    };
    let cpu = |why: Option<String>| {
        config.fits_cpu(why.as_deref())?;
        Ok(Chosen::Cpu { why })
    };
    match config.device.kind {
        DeviceKind::Cpu => cpu(None),
        DeviceKind::Auto => match usable() {
            Ok(gpus) => Ok(Chosen::Gpus(gpus)),
            Err(why) => cpu(Some(why.to_string())),
        },
        DeviceKind::Cuda(_) => {
            let numbers: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
            let refused = |why: CudaError| {
                let message = format!(
                    "`device.kind` is cuda:{}, but {why}. To run without a GPU write `auto` or `cpu`",
                    numbers.join(",")
                );
                ConfigError { place: None, message }
            };
            usable().map(Chosen::Gpus).map_err(refused)
        }
    }
}

/// Whether the GPUs of groups and replicas are of one kind: ranks that wait for each other are as slow as the slowest, and what passes cost
/// is measured on one replica.
fn alike(gpus: &[GpuInfo]) -> Result<(), CudaError> {
    let of = |gpu: &GpuInfo| (gpu.sms, gpu.capability);
    match gpus.iter().find(|gpu| of(gpu) != of(&gpus[0])) {
        None => Ok(()),
        Some(other) => Err(CudaError::Unfit(format!(
            "GPU {} ({}, {} SMs) and GPU {} ({}, {} SMs) are not alike: name GPUs of one kind, such as `device.kind: cuda:0,2`",
            gpus[0].ordinal, gpus[0].name, gpus[0].sms, other.ordinal, other.name, other.sms
        ))),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::raw::Document;

    fn config(text: &str) -> Config {
        let document = Document::parse(Path::new("x.yaml"), text.to_owned()).unwrap();
        Config::from_document(&document).unwrap()
    }

    fn gpu(ordinal: usize) -> GpuInfo {
        GpuInfo {
            ordinal,
            name: "a GPU".to_owned(),
            sms: 132,
            memory_bytes: 80 << 30,
            capability: (9, 0),
            block_shared_bytes: 232_448,
            cuda_version: 13_000,
        }
    }

    fn chosen(text: &str, found: bool) -> Result<Chosen, String> {
        let probe = |ordinal| if found { Ok(gpu(ordinal)) } else { Err(CudaError::NoDriver) };
        choose_with(&config(text), probe).map_err(|error| error.to_string())
    }

    #[test]
    fn auto_takes_the_first_gpu_or_the_cpu_and_says_why() {
        assert_eq!(chosen("", true), Ok(Chosen::Gpus(vec![gpu(0)])));
        let Ok(Chosen::Cpu { why: Some(why) }) = chosen("", false) else { panic!("no CPU") };
        assert!(why.contains("libcuda.so.1 is not found") && why.contains("install"), "{why}");
        assert_eq!(chosen("device: {kind: cpu}", true), Ok(Chosen::Cpu { why: None }));
        for text in [
            "model: {dtype: int4}",
            "model: {dtype: int4, draft_dtype: bf16}",
            "model: {draft_dtype: int4}",
            "model: {dtype: fp8}",
            "model: {dtype: int8, draft_dtype: fp8}",
            "model: {dtype: fp8, draft_dtype: int4}",
            "kv: {cache_dtype: fp8}",
            "model: {dtype: f32}\nkv: {cache_dtype: fp8}",
        ] {
            assert_eq!(chosen(text, true), Ok(Chosen::Gpus(vec![gpu(0)])), "{text}");
        }
        for (text, problem) in [
            ("model: {dtype: f32, draft_dtype: int8}", "`model.draft_dtype`"),
            ("model: {dtype: int4, draft_dtype: f32}", "`model.draft_dtype`"),
            ("kv: {cache_dtype: int8}", "`kv.cache_dtype: int8` is for the CPU alone"),
            ("kv: {block_size: 32}", "block_size"),
            ("device: {draft_tensor_parallel: 2}", "device.draft_tensor_parallel"),
            (
                "device: {tensor_parallel: 2, draft_tensor_parallel: 2, partitions: [16]}",
                "`device.partitions: []`",
            ),
        ] {
            let Ok(Chosen::Cpu { why: Some(why) }) = chosen(text, true) else { panic!("{text}") };
            assert!(why.contains(problem), "{why}");
        }
        for (text, found, problem) in [
            (
                "model: {dtype: fp8}\ndevice: {kind: cpu}",
                true,
                "`model.dtype: fp8` runs on GPUs alone. On the CPU choose",
            ),
            ("model: {draft_dtype: fp8}", false, "libcuda.so.1 is not found"),
            (
                "kv: {cache_dtype: fp8}\ndevice: {kind: cpu}",
                true,
                "`kv.cache_dtype: fp8` runs on GPUs alone. On the CPU choose auto or int8",
            ),
            ("kv: {cache_dtype: fp8}", false, "libcuda.so.1 is not found"),
            ("model: {dtype: fp8}\nkv: {block_size: 32}", true, "block_size"),
        ] {
            let refusal = chosen(text, found).unwrap_err();
            assert!(refusal.contains(problem) && refusal.contains("fp8"), "{refusal}");
        }
    }

    #[test]
    fn a_gpu_that_was_named_is_taken_or_refused() {
        assert_eq!(chosen("device: {kind: 'cuda:3'}", true), Ok(Chosen::Gpus(vec![gpu(3)])));
        let four = "device: {kind: 'cuda:1', tensor_parallel: 2, replicas: 2}";
        assert_eq!(chosen(four, true), Ok(Chosen::Gpus((1..5).map(gpu).collect())));
        let other = GpuInfo { sms: 108, ..gpu(1) };
        let refusal = alike(&[gpu(0), other]).unwrap_err().to_string();
        assert!(refusal.contains("GPU 1 (a GPU, 108 SMs) are not alike"), "{refusal}");
        let refusal = chosen("device: {kind: 'cuda:0'}", false).unwrap_err();
        assert!(
            refusal.contains("`device.kind` is cuda:0") && refusal.contains("NVIDIA's driver"),
            "{refusal}"
        );
        assert!(refusal.contains("`auto` or `cpu`"), "{refusal}");
        let refusal = chosen("device: {kind: 'cuda:0'}\nkv: {cache_dtype: int8}", true).unwrap_err();
        assert!(refusal.contains("choose fp8 or auto"), "{refusal}");
    }
}
