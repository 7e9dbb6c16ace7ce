//! Checkpoints of 4 bits and of FP8 on a GPU, over a fake driver: their logits against the forward pass in f32 over the numbers that their codes stand for, and what of them stays
//! in its own bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};
use faser_kernels::Dtype;
use faser_kernels::cuda::Gpu;
use faser_models::cuda::CudaModel;
use faser_models::rounding::Distance;
use faser_models::{Model, ModelConfig, Shard, WeightSource};

use crate::accuracy::demo;
use crate::cuda_fake;
use crate::cuda_logits::on_gpu;
use crate::quantised_files::{Layout, Order, quantise};
use crate::sequences::on_cpu;
use crate::session::golden;

/// A model quantised, in a folder that goes when this is dropped.
struct Quantised(PathBuf);

impl Quantised {
    /// The demo target.
    fn demo(name: &str, layout: Layout, group: usize) -> Quantised {
        Quantised::of(&demo("target"), name, layout, group)
    }

    fn of(from: &Path, name: &str, layout: Layout, group: usize) -> Quantised {
        let folder = folder(name);
        quantise(from, &folder, layout, group);
        Quantised(folder)
    }
}

fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("faser-cuda-{}-{name}", std::process::id()))
}

/// A Qwen3-MoE whose experts are wide enough for records, made of one whose are not: each has its rows, or columns, twice.
fn wider_experts() -> Quantised {
    let (from, to) = (golden("qwen3-moe"), folder("wider"));
    std::fs::create_dir_all(&to).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    config["moe_intermediate_size"] = 32.into();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let mut tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    for (name, tensor) in tensors.iter_mut().filter(|(name, _)| name.contains(".experts.")) {
        let along = if name.contains("down_proj") { 1 } else { 0 };
        *tensor = Tensor::cat(&[&*tensor, &(&*tensor * 0.5).unwrap()], along).unwrap();
    }
    candle_core::safetensors::save(&tensors, to.join("model.safetensors")).unwrap();
    Quantised(to)
}

impl Drop for Quantised {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The f32 model on the CPU, and on the GPU one in bf16 and one in its own bits.
fn compare(gpu: &Arc<Gpu>, path: &Path, own: Dtype, what: &str) {
    let source = WeightSource::folder(path).unwrap();
    let cpu = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
    let (expected, layers) = (on_cpu(&cpu).unwrap(), cpu.config().layers.len());
    let mut bytes = Vec::new();
    for dtype in [Dtype::Bf16, own] {
        let free = gpu.memory().unwrap().0;
        let cuda = CudaModel::load(gpu, &source, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
        let used = (free - gpu.memory().unwrap().0) as u64;
        let told = CudaModel::weight_bytes(cpu.config(), Some(path), Shard::WHOLE, dtype).unwrap();
        assert!((told..told + 2048).contains(&used), "{what} in {dtype}: {used} bytes of {told}");
        bytes.push((told, cuda.read_bytes()));
        let distance = Distance::between(&[on_gpu(&Arc::new(cuda), false)], &[&expected]);
        println!("{what} in {dtype}: {distance} from f32; {told} bytes");
        // Weights are rounded to bf16, or, of FP8 among few rows, not at all.
        assert!(distance.is_within(Distance::of_rounding(Dtype::Bf16, layers)), "{what}: {distance}");
    }
    // Records have room for 128 inputs.
    assert_eq!(bytes[1] < bytes[0], cpu.config().hidden >= 128, "{what}: {bytes:?}");
}

#[test]
fn checkpoints_of_four_bits_have_the_logits_of_their_numbers() {
    let name = "cuda_records::checkpoints_of_four_bits_have_the_logits_of_their_numbers";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        compare(&gpu, &golden("gguf").join("model.gguf"), Dtype::Int4, "a GGUF file with Q4_K");
        for (name, layout, group) in
            [("awq", Layout::Awq, 128), ("w4a16", Layout::Packed { symmetric: true }, 32)]
        {
            compare(&gpu, &Quantised::demo(name, layout, group).0, Dtype::Int4, name);
        }
    });
    let Some(report) = report else { return };
    for kernel in ["matmul_8_int4_heads", "matmul_8_int4_activate", "dequantise_int4"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn checkpoints_of_fp8_have_the_logits_of_their_numbers() {
    let name = "cuda_records::checkpoints_of_fp8_have_the_logits_of_their_numbers";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        for (name, layout) in [("blocks", Layout::Blocks), ("channels", Layout::Channels)] {
            compare(&gpu, &Quantised::demo(name, layout, 128).0, Dtype::Fp8, name);
        }
        for name in ["quantised-fp8-tensor", "quantised-fp8-channel"] {
            compare(&gpu, &golden(name), Dtype::Fp8, name);
        }
    });
    let Some(report) = report else { return };
    for kernel in ["matmul_8_fp8_heads", "matmul_8_fp8_activate", "dequantise_fp8"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn int8_has_the_logits_of_its_numbers() {
    let name = "cuda_records::int8_has_the_logits_of_its_numbers";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        compare(&gpu, &Quantised::demo("rounded", Layout::Rounded, 32).0, Dtype::Int8, "numbers of int8");
    });
    let Some(report) = report else { return };
    for kernel in ["matmul_8_int8_heads", "matmul_8_int8_activate", "dequantise_int8"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn experts_in_their_own_bits_have_the_logits_of_their_numbers() {
    let name = "cuda_records::experts_in_their_own_bits_have_the_logits_of_their_numbers";
    let report = cuda_fake::inside(name, &[], || {
        let (gpu, experts) = (Gpu::open(0, None).unwrap(), wider_experts());
        for (layout, own) in [
            (Layout::Packed { symmetric: true }, Dtype::Int4),
            (Layout::Channels, Dtype::Fp8),
            (Layout::Blocks, Dtype::Fp8),
            (Layout::Rounded, Dtype::Int8),
        ] {
            let name = format!("experts in {own}");
            compare(&gpu, &Quantised::of(&experts.0, "experts", layout, 32).0, own, &name);
        }
    });
    let Some(report) = report else { return };
    for kernel in ["experts_8", "experts_32", "experts_activate_8", "experts_activate_32"] {
        for own in ["int4", "fp8", "int8"] {
            assert!(report.contains(&format!("runs of {kernel}_{own} ")), "{kernel}_{own}: {report}");
        }
    }
}

#[test]
fn what_stays_in_its_own_bits_is_counted() {
    let found = |path: &Path| ModelConfig::load(path).unwrap().own_bits(path).unwrap();
    // Groups of 16 are no blocks; there are no kernels for MXFP4.
    assert_eq!(found(&golden("quantised-awq")).on_gpu, 0);
    let experts = found(&golden("gpt-oss-mxfp4"));
    assert!(experts.on_gpu == 0 && experts.kept > 0, "{experts:?}");
    let folder = Quantised::demo("counted", Layout::Gptq(Order::Plain), 64);
    assert_eq!((found(&folder.0).on_gpu, found(&folder.0).fp8_on_gpu), (6 * 4, 0));
    // Down projections of 48 inputs are no whole steps; blocks of 20 no records.
    let channels = found(&golden("quantised-fp8-channel"));
    assert_eq!((channels.fp8_on_gpu, channels.others), (3, 4), "{channels:?}");
    assert_eq!(found(&golden("quantised-fp8-blocks")).fp8_on_gpu, 0);
    let blocks = Quantised::demo("counted-fp8", Layout::Blocks, 128);
    assert_eq!((found(&blocks.0).fp8_on_gpu, found(&blocks.0).on_gpu), (6 * 4, 0));
}

/// What falls on the borders of blocks; `four_bit_records.rs` of the kernels has cuts that do not.
#[test]
fn shards_keep_their_bits() {
    let folder = Quantised::demo("cuts", Layout::Packed { symmetric: true }, 32);
    let folder = &folder.0;
    let config = ModelConfig::load(folder).unwrap();
    let bytes = |path: &Path, config: &ModelConfig, shard, dtype| {
        CudaModel::weight_bytes(config, Some(path), shard, dtype).unwrap()
    };
    let (layers, hidden) = (config.layers.len(), config.hidden);
    let numbers = layers * (hidden * (4 + 2 + 2) * 64 + hidden * hidden + 3 * hidden * 704);
    let whole = [Dtype::Bf16, Dtype::Int4].map(|dtype| bytes(folder, &config, Shard::WHOLE, dtype));
    // 4.5 bits in the place of 16; records of 704 inputs are five and a half, and take six.
    let padding = layers * hidden * 64 * 9 / 16;
    assert_eq!(whole[0] - whole[1], (numbers * 2 - numbers * 9 / 16 - padding) as u64);
    for shard in Shard::all(2) {
        let [wide, four] = [Dtype::Bf16, Dtype::Int4].map(|dtype| bytes(folder, &config, shard, dtype));
        // 352 inputs are eleven blocks: two and three quarters of a record.
        let padding = layers * hidden * 32 * 9 / 16;
        assert_eq!(wide - four, (numbers - numbers / 2 * 9 / 16 - padding) as u64, "{shard}");
    }
}
