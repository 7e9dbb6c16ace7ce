//! The planner's promises: every plan fits, every refusal names what would.

use faser_topology::{
    CpuDevice, KvPools, KvRequest, LanePair, ModelFootprint, Node, Partition, Placement, TopologyError, place,
};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

fn device(memory_bytes: u64) -> CpuDevice {
    CpuDevice { name: "test".into(), cores: vec![0, 1, 2, 3], nodes: vec![], memory_bytes }
}

fn model(weight_bytes: u64, kv_bytes_per_token: u64) -> ModelFootprint {
    ModelFootprint { weight_bytes, kv_bytes_per_token, max_context: 4096, workspace_bytes: MIB, copies: 1 }
}

fn request(max_running: usize, max_context: usize) -> KvRequest {
    KvRequest { block_size: 16, memory_bytes: None, max_running, max_context }
}

#[test]
fn with_room_the_pools_hold_all_that_may_run() {
    let (target, draft) = (model(100 * MIB, 1000), model(10 * MIB, 100));
    let plan = place(&device(4096 * MIB), Some(2), &target, Some(&draft), &request(8, 100)).unwrap();
    let lane = device(0).first(2).unwrap();
    let blocks = 8 * 7; // 100 tokens take 7 blocks of 16
    let expected = Placement {
        pools: KvPools { target_blocks: blocks, draft_blocks: blocks, kv_bytes: blocks as u64 * 16 * 1100 },
        partitions: vec![
            LanePair { draft: lane.clone(), verify: lane },
            LanePair { draft: Partition { cores: vec![1] }, verify: Partition { cores: vec![0] } },
        ],
    };
    assert_eq!(plan, expected);
}

#[test]
fn without_a_draft_its_pool_is_empty_and_all_cores_are_used() {
    let plan = place(&device(512 * MIB), None, &model(MIB, 10), None, &request(1, 16)).unwrap();
    assert_eq!((plan.pools.draft_blocks, plan.pools.target_blocks), (0, 1));
    assert_eq!(plan.partitions.len(), 1);
    assert_eq!(plan.partitions[0].verify.cores, [0, 1, 2, 3]);
}

#[test]
fn ranks_that_divide_the_sequences_have_draft_kv_for_their_part_and_some_more() {
    let target = model(100 * MIB, 1000);
    let pools = |copies, max_running, memory_bytes| {
        // On a CPU all of them are in one memory.
        let draft = ModelFootprint { copies, ..model(10 * MIB, 100 * copies as u64) };
        let kv = KvRequest { memory_bytes, ..request(max_running, 160) };
        place(&device(4096 * MIB), None, &target, Some(&draft), &kv).unwrap().pools
    };
    // 80 blocks, of which a quarter, and a quarter of that.
    assert_eq!((pools(1, 8, None).target_blocks, pools(1, 8, None).draft_blocks), (80, 80));
    let four = pools(4, 8, None);
    assert_eq!((four.target_blocks, four.draft_blocks), (80, 25));
    assert_eq!(four.kv_bytes, 16 * (80 * 1000 + 25 * 400));
    // Each rank drafts for the longest sequence.
    assert_eq!((pools(4, 2, None).target_blocks, pools(4, 2, None).draft_blocks), (20, 10));
    // What the draft does not take is the target's.
    let [one, four] = [1, 4].map(|copies| pools(copies, 8, Some(16 * 100 * 1400)));
    assert_eq!((one.target_blocks, four.target_blocks, four.draft_blocks), (127, 124, 39));
}

#[test]
fn lanes_keep_to_numa_nodes() {
    let node = |number: usize| Node { number, cores: (0..4).map(|i| 2 * i + number).collect() };
    let device = CpuDevice {
        name: "test".into(),
        cores: (0..8).collect(),
        nodes: vec![node(0), node(1)],
        memory_bytes: 4096 * MIB,
    };
    let (target, draft) = (model(100 * MIB, 1000), model(10 * MIB, 100));
    let cores = |threads| {
        let plan = place(&device, threads, &target, Some(&draft), &request(8, 100)).unwrap();
        plan.partitions.into_iter().map(|pair| (pair.verify.cores, pair.draft.cores)).collect::<Vec<_>>()
    };
    let all = vec![0, 2, 4, 6, 1, 3, 5, 7];
    let expected = vec![
        (all.clone(), all),
        (vec![0, 2, 4, 6, 1, 3, 5], vec![7]),
        (vec![0, 2, 4, 6, 1, 3], vec![5, 7]),
        (vec![0, 2, 4, 6], vec![1, 3, 5, 7]), // a node each
    ];
    assert_eq!(cores(None), expected);
    let one = vec![0, 2, 4, 6];
    let expected = vec![(one.clone(), one), (vec![0, 2, 4], vec![6]), (vec![0, 2], vec![4, 6])];
    assert_eq!(cores(Some(4)), expected);
}

#[test]
fn refusals_say_what_would_fit() {
    let target = model(100 * MIB, MIB);
    let say = |memory, threads, kv: &KvRequest| {
        place(&device(memory), threads, &target, None, kv).unwrap_err().to_string()
    };
    assert!(say(50 * MIB, None, &request(1, 16)).contains("need 101.00 MiB of the 50.00 MiB"));
    assert!(say(4096 * MIB, Some(5), &request(1, 16)).contains("choose 1 to 4"));
    assert!(say(4096 * MIB, None, &request(1, 5000)).contains("at most 4096"));
    assert!(say(4096 * MIB, None, &request(0, 16)).contains("max_running"));
    let asked = KvRequest { memory_bytes: Some(5000 * MIB), ..request(1, 16) };
    assert!(say(4197 * MIB, None, &asked).contains("at most 4.00 GiB"));
    // 199 MiB are left, half of it holds 6 blocks of 16 MiB; 7 would need 112 MiB.
    let tight = say(300 * MIB, None, &request(1, 112));
    assert!(
        tight.contains("max_context to at most 96") && tight.contains("kv.memory to 117440512"),
        "{tight}"
    );
}

#[test]
fn following_the_advice_of_a_refusal_works() {
    let target = model(100 * MIB, MIB);
    let refusal = place(&device(300 * MIB), None, &target, None, &request(1, 112)).unwrap_err();
    let TopologyError::DoesNotFit { needed_bytes, fitting_context, .. } = refusal else {
        panic!("{refusal}")
    };
    place(&device(300 * MIB), None, &target, None, &request(1, fitting_context)).unwrap();
    let explicit = KvRequest { memory_bytes: Some(needed_bytes), ..request(1, 112) };
    place(&device(300 * MIB), None, &target, None, &explicit).unwrap();
}

proptest! {
    #[test]
    fn every_plan_fits_and_every_refusal_has_a_reason(
        memory in 0u64..8192, target_mib in 0u64..4096, draft_mib in proptest::option::of(0u64..512),
        target_kv in 1u64..200_000, draft_kv in 1u64..20_000, block_size in 1usize..64, max_running in 1usize..64,
        max_context in 1usize..4097, kv_mib in proptest::option::of(0u64..4096), threads in proptest::option::of(1usize..5),
        copies in 1usize..5,
    ) {
        let device = device(memory * MIB);
        let target = model(target_mib * MIB, target_kv);
        let draft = draft_mib.map(|mib| ModelFootprint { copies, ..model(mib * MIB, draft_kv) });
        let kv = KvRequest { block_size, memory_bytes: kv_mib.map(|mib| mib * MIB), max_running, max_context };
        let fixed = target.weight_bytes + target.workspace_bytes + draft.as_ref().map_or(0, |d| d.weight_bytes + d.workspace_bytes);
        let token_bytes = target_kv + draft.as_ref().map_or(0, |_| draft_kv);
        let sequence_blocks = max_context.div_ceil(block_size);
        let sequence_bytes = (sequence_blocks * block_size) as u64 * token_bytes;
        match place(&device, threads, &target, draft.as_ref(), &kv) {
            Ok(plan) => {
                let pools = plan.pools;
                prop_assert!(pools.target_blocks >= sequence_blocks);
                let drafts = draft.is_some() as usize;
                prop_assert!(pools.draft_blocks <= drafts * pools.target_blocks);
                prop_assert!(pools.draft_blocks >= drafts * sequence_blocks);
                prop_assert!(pools.draft_blocks * copies >= drafts * pools.target_blocks);
                prop_assert!(copies > 1 || pools.draft_blocks == drafts * pools.target_blocks);
                let bytes = |target: usize, draft: usize| block_size as u64 * (target as u64 * target_kv + draft as u64 * draft_kv);
                prop_assert_eq!(pools.kv_bytes, bytes(pools.target_blocks, pools.draft_blocks));
                let limit = kv.memory_bytes.unwrap_or((device.memory_bytes - fixed) / 2);
                let more = bytes(pools.target_blocks + 1, pools.draft_blocks + drafts);
                prop_assert!(more > limit || pools.target_blocks == max_running * sequence_blocks, "there is room for more");
                prop_assert!(fixed + pools.kv_bytes <= device.memory_bytes);
                prop_assert!(pools.kv_bytes <= kv.memory_bytes.unwrap_or((device.memory_bytes - fixed) / 2));
                let whole = &plan.partitions[0];
                prop_assert_eq!(whole.verify.cores.len(), threads.unwrap_or(4));
                for pair in &plan.partitions[1..] {
                    let cores = [&pair.verify.cores[..], &pair.draft.cores].concat();
                    prop_assert!(!pair.draft.cores.is_empty() && !pair.verify.cores.is_empty());
                    prop_assert_eq!(&cores, &whole.verify.cores);
                }
            }
            Err(TopologyError::WeightsDoNotFit { .. }) => prop_assert!(fixed > device.memory_bytes),
            Err(TopologyError::KvMemory { left_bytes, .. }) => prop_assert!(kv.memory_bytes.unwrap() > left_bytes),
            Err(TopologyError::DoesNotFit { needed_bytes, fitting_context, .. }) => {
                prop_assert_eq!(needed_bytes, sequence_bytes);
                prop_assert!(sequence_bytes > kv.memory_bytes.unwrap_or((device.memory_bytes - fixed) / 2));
                prop_assert!(fitting_context < max_context);
                if fitting_context > 0 {
                    let shorter = KvRequest { max_context: fitting_context, ..kv };
                    prop_assert!(place(&device, threads, &target, draft.as_ref(), &shorter).is_ok());
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
