//! Keys of cost tables: what makes another one.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use faser_actors::{CpuSpec, CudaDevice, CudaSource, CudaSpec, Dtype, GpuInfo, GroupTerms, Isa};
use faser_models::{Model, synthetic};
use faser_topology::{CpuDevice, GpuDevice, Partition};
use serde_json::Value;

use super::super::tests::Folder;
use super::*;

#[test]
fn the_hash_is_fnv_1a() {
    for (text, hex) in [("", "cbf29ce484222325"), ("a", "af63dc4c8601ec8c"), ("foobar", "85944171f73967e8")] {
        let mut hash = Fnv::default();
        hash.update(text.as_bytes());
        assert_eq!(hash.hex(), hex);
    }
}

#[test]
fn weights_are_told_by_size_and_header_wherever_they_lie() {
    let of = |name: &str, header: &str, weights: usize| {
        let folder = Folder::new(name);
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + weights, 7);
        fs::create_dir_all(&folder.0).unwrap();
        fs::write(folder.0.join("model.safetensors"), bytes).unwrap();
        Weights::of_folder(&folder.0).unwrap()
    };
    let here = of("here", "{\"a\": 1}", 100);
    assert_eq!(here, of("there", "{\"a\": 1}", 100));
    assert_ne!(here, of("longer", "{\"a\": 1}", 101));
    assert_ne!(here, of("other", "{\"b\": 1}", 100));
    assert!(matches!(here, Weights::Checkpoint { bytes: 116, .. }), "{here:?}");
    let missing = Weights::of_folder(Path::new("nowhere")).unwrap_err().to_string();
    assert!(missing.contains("nowhere"), "{missing}");
}

#[test]
fn weights_that_were_trained_on_are_told_by_samples() {
    let of = |name: &str, weight: u8, bytes: usize| {
        let folder = Folder::new(name);
        fs::create_dir_all(&folder.0).unwrap();
        fs::write(folder.0.join("model.safetensors"), vec![weight; bytes]).unwrap();
        sample(&folder.0).unwrap()
    };
    let first = of("sample", 7, 100_000);
    assert_eq!(of("same-sample", 7, 100_000), first);
    assert_ne!(of("trained-sample", 8, 100_000), first);
    assert_ne!(of("small-sample", 7, 10), of("trained-small-sample", 8, 10));
    sample(Path::new("nowhere")).unwrap_err();
}

#[test]
fn whatever_changes_a_cost_changes_the_key() {
    let shape = SyntheticSpec {
        layers: 2,
        draft_layers: 1,
        hidden: 32,
        intermediate: 32,
        experts: 0,
        experts_per_token: 0,
        heads: 2,
        kv_heads: 1,
        vocab: 256,
        max_context: 64,
        seed: 1,
        residual_scale: 0.1,
        mask_token: None,
    };
    let (target, draft) = synthetic::pair(&shape, Dtype::F32, &mut |_| {}).unwrap();
    let (target, draft) = (Arc::new(target), Arc::new(draft));
    let device = |draft: &Arc<Model>, cores: &[usize], isa| {
        let lane = Partition { cores: cores.to_vec() };
        let partitions = vec![LanePair { draft: lane.clone(), verify: lane }];
        DeviceSpec::Cpu(CpuSpec {
            target: vec![target.clone()],
            draft: vec![draft.clone()],
            partitions,
            isa,
            rank_deadline: Duration::ZERO,
            nodes: None,
        })
    };
    let one = device(&draft, &[0], Isa::Portable);
    let machine = |name: &str| {
        let device = CpuDevice { name: name.to_owned(), nodes: Vec::new(), cores: vec![0], memory_bytes: 1 };
        Machine::Cpu { device, isa: Isa::Portable, forced: false, why: None }
    };
    let weights = || [Weights::of_synthetic(&shape), Weights::of_synthetic(&shape)];
    let of = |device: &DeviceSpec, [block_size, max_rows, max_context]: [usize; 3]| {
        let spec = ProfileSpec { device, block_size, max_rows, max_context, deterministic: false };
        Key::new(&spec, &machine("a cpu"), weights())
    };
    let sizes = [16, 64, 64];
    let spec =
        ProfileSpec { device: &one, block_size: 16, max_rows: 64, max_context: 64, deterministic: false };
    let other = Weights::of_synthetic(&SyntheticSpec { seed: 2, ..shape.clone() });
    let key = of(&one, sizes);
    assert_eq!(key, of(&one, sizes));
    for changed in [
        of(&device(&draft, &[0, 1], Isa::Portable), sizes),
        of(&device(&draft, &[0], Isa::Avx2), sizes),
        of(&device(&target, &[0], Isa::Portable), sizes),
        Key::new(&ProfileSpec { deterministic: true, ..spec }, &machine("a cpu"), weights()),
        of(&one, [16, 65, 64]),
        of(&one, [8, 64, 64]),
        of(&one, [16, 64, 32]),
        Key::new(&spec, &machine("another cpu"), weights()),
        Key::new(&spec, &machine("a cpu"), [other, Weights::of_synthetic(&shape)]),
    ] {
        assert_ne!(key, changed);
    }
    // What a person looks for stands there in clear.
    let written = serde_json::to_value(&key).unwrap();
    assert_eq!(written["device"]["cpu"], "a cpu");
    assert_eq!(written["device"]["partitions"][0]["verify"], Value::from(vec![0]));
    assert_eq!((&written["target"]["layers"], &written["target"]["dtype"]), (&2.into(), &"f32".into()));
    assert_eq!(written["target"]["weights"]["synthetic"]["residual_scale"], "0.1");
    assert_eq!(written["faser"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn a_gpus_key_has_what_changes_its_costs() {
    let shape = SyntheticSpec::preset("tiny").unwrap();
    let (target, draft) = synthetic::pair(&shape, Dtype::F32, &mut |_| {}).unwrap();
    let facts = [ModelFacts::of(&target), ModelFacts::of(&draft)];
    let with = |group: GroupTerms,
                ranks: usize,
                change: &dyn Fn(&mut GpuInfo),
                draft_sms: &[u32],
                host: &str| {
        let mut info = GpuInfo {
            ordinal: 0,
            name: "a GPU".to_owned(),
            sms: 132,
            memory_bytes: 80 << 30,
            capability: (9, 0),
            block_shared_bytes: 232_448,
            cuda_version: 13_000,
        };
        change(&mut info);
        let (first, ordinals) = (info.clone(), vec![0]);
        let machine = Machine::Gpus { first, ordinals, host: host.to_owned() };
        let [target, draft] = facts.clone();
        // Never opened.
        let device = || {
            CudaDevice::new(CudaSource {
                device: GpuDevice { sms: info.sms, memory_bytes: info.memory_bytes, utilization: 0.9 },
                info: info.clone(),
                kernel_cache: None,
                target: target.clone(),
                draft: Some(draft.clone()),
                weights: Arc::new(|_, _| Ok(Vec::new())),
            })
        };
        let (ranks, draft_sms) = ((0..ranks).map(|_| device()).collect(), draft_sms.to_vec());
        let device =
            DeviceSpec::Cuda(CudaSpec { ranks, apart: None, draft_sms, group, nodes: None, own_ranks: None });
        let spec = ProfileSpec {
            device: &device,
            block_size: 16,
            max_rows: 64,
            max_context: 64,
            deterministic: false,
        };
        Key::new(&spec, &machine, [Weights::of_synthetic(&shape), Weights::of_synthetic(&shape)])
    };
    let group = GroupTerms::within(Duration::ZERO);
    let over = |ranks: usize, change: &dyn Fn(&mut GpuInfo), draft_sms: &[u32], host: &str| {
        with(group, ranks, change, draft_sms, host)
    };
    let of = |change: &dyn Fn(&mut GpuInfo), draft_sms: &[u32], host: &str| over(1, change, draft_sms, host);
    let key = of(&|_| {}, &[16], "a cpu");
    assert_eq!(key, of(&|info| info.memory_bytes = 1 << 30, &[16], "a cpu"));
    for changed in [
        of(&|info| info.name = "another".to_owned(), &[16], "a cpu"),
        of(&|info| info.sms = 78, &[16], "a cpu"),
        of(&|info| info.cuda_version = 13_010, &[16], "a cpu"),
        of(&|_| {}, &[16, 32], "a cpu"),
        of(&|_| {}, &[16], "another cpu"),
        over(2, &|_| {}, &[16], "a cpu"),
    ] {
        assert_ne!(key, changed);
    }
    let by_nccl = GroupTerms { custom_all_reduce: false, ..group };
    assert_ne!(
        with(by_nccl, 2, &|_| {}, &[16], "a cpu"),
        over(2, &|_| {}, &[16], "a cpu"),
        "sums by NCCL take longer"
    );
    assert_eq!(with(by_nccl, 1, &|_| {}, &[16], "a cpu"), key, "one GPU has no sums");
    let written = serde_json::to_value(&key).unwrap();
    assert_eq!(written["device"]["gpu"], "a GPU");
    assert_eq!(written["device"]["partitions"][1], serde_json::json!({"draft": 16, "verify": 116}));
}
