//! Checkpoints of 4 bits on a GPU, over a fake driver: their logits against the forward pass in f32 over the numbers that their codes stand for, and what of them stays of 4 bits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use faser_kernels::Dtype;
use faser_kernels::cuda::Gpu;
use faser_models::cuda::CudaModel;
use faser_models::rounding::Distance;
use faser_models::{Model, ModelConfig, Shard, WeightSource};

use crate::accuracy::demo;
use crate::cuda_fake;
use crate::cuda_logits::on_gpu;
use crate::four_bit_files::{Layout, Order, quantise};
use crate::sequences::on_cpu;
use crate::session::golden;

/// The demo target quantised, in a folder that goes when this is dropped.
struct QuantisedDemo(PathBuf);

impl QuantisedDemo {
    fn new(name: &str, layout: Layout, group: usize) -> QuantisedDemo {
        let folder = std::env::temp_dir().join(format!("faser-cuda-{}-{name}", std::process::id()));
        quantise(&demo("target"), &folder, layout, group);
        QuantisedDemo(folder)
    }
}

impl Drop for QuantisedDemo {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// The f32 model on the CPU, and the others on the GPU.
fn compare(gpu: &Arc<Gpu>, path: &Path, what: &str) {
    let source = WeightSource::folder(path).unwrap();
    let cpu = Model::load(&source, Shard::WHOLE, Dtype::F32, &mut |_| {}).unwrap();
    let (expected, layers) = (on_cpu(&cpu).unwrap(), cpu.config().layers.len());
    let mut bytes = Vec::new();
    for dtype in [Dtype::Bf16, Dtype::Int4] {
        let free = gpu.memory().unwrap().0;
        let cuda = CudaModel::load(gpu, &source, Shard::WHOLE, dtype, &mut |_| {}).unwrap();
        let used = (free - gpu.memory().unwrap().0) as u64;
        let told = CudaModel::weight_bytes(cpu.config(), Some(path), Shard::WHOLE, dtype).unwrap();
        assert!((told..told + 2048).contains(&used), "{what} in {dtype}: {used} bytes of {told}");
        bytes.push((told, cuda.read_bytes()));
        let distance = Distance::between(&[on_gpu(&Arc::new(cuda), false)], &[&expected]);
        println!("{what} in {dtype}: {distance} from f32; {told} bytes");
        // Weights are rounded to bf16 in both.
        assert!(distance.is_within(Distance::of_rounding(Dtype::Bf16, layers)), "{what}: {distance}");
    }
    assert!(bytes[1] < bytes[0], "{what}: {bytes:?}");
}

#[test]
fn checkpoints_of_four_bits_have_the_logits_of_their_numbers() {
    let name = "cuda_four_bits::checkpoints_of_four_bits_have_the_logits_of_their_numbers";
    let report = cuda_fake::inside(name, &[], || {
        let gpu = Gpu::open(0, None).unwrap();
        compare(&gpu, &golden("gguf").join("model.gguf"), "a GGUF file with Q4_K");
        for (name, layout, group) in
            [("awq", Layout::Awq, 128), ("w4a16", Layout::Packed { symmetric: true }, 32)]
        {
            compare(&gpu, &QuantisedDemo::new(name, layout, group).0, name);
        }
    });
    let Some(report) = report else { return };
    for kernel in ["matmul_8_int4_heads", "matmul_8_int4_norm", "matmul_8_int4_activate", "matmul_32_int4"] {
        assert!(report.contains(&format!("runs of {kernel} ")), "{kernel}: {report}");
    }
}

#[test]
fn what_stays_of_four_bits_is_counted() {
    let found = |path: &Path| ModelConfig::load(path).unwrap().own_bits(path).unwrap();
    // Groups of 16 are no blocks; experts have no kernels.
    assert_eq!(found(&golden("quantised-awq")).on_gpu, 0);
    let experts = found(&golden("gpt-oss-mxfp4"));
    assert!(experts.on_gpu == 0 && experts.kept > 0, "{experts:?}");
    let folder = QuantisedDemo::new("counted", Layout::Gptq(Order::Plain), 64);
    assert_eq!(found(&folder.0).on_gpu, 6 * 4);
}

/// What falls on the borders of blocks; `four_bit_records.rs` of the kernels has cuts that do not.
#[test]
fn shards_keep_their_bits() {
    let folder = QuantisedDemo::new("cuts", Layout::Packed { symmetric: true }, 32);
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
