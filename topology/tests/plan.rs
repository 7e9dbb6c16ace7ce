//! The promises of plans: they fit, everything is held once, and what a refusal names would fit.

use std::collections::BTreeMap;

use faser_topology::{
    CpuDevice, DeviceId, Divisible, DraftPlace, Gpu, Joined, KvRequest, Lanes, Link, LinkKind, Plan,
    PlanDevices, PlanModel, PlanRequest, Problem, Rank, Shard, Share, ShareBytes, Topology, plan,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

const TARGET: Divisible = Divisible { layers: 80, heads: 64, kv_heads: 8, columns: 28_672, tokens: 128_256 };
const DRAFT: Divisible = Divisible { layers: 16, heads: 32, kv_heads: 8, columns: 8192, tokens: 128_256 };

/// Bytes by plain rules: so much for each head, column and token of each layer.
fn bytes(scale: u64) -> impl Fn(&Share, &str) -> ShareBytes {
    move |share, dtype| {
        let each = if dtype == "f32" { 4 } else { 2 } * scale;
        let (layers, of) = (share.layers.len() as u64, |range: &std::ops::Range<usize>| range.len() as u64);
        let layer = 2 * 128 * (of(&share.heads) + of(&share.kv_heads)) + 3 * of(&share.columns);
        ShareBytes {
            weight_bytes: each * (layers * layer * 8 + of(&share.tokens) * 16),
            kv_bytes_per_token: each * layers * of(&share.kv_heads) * 16,
            workspace_bytes: 64 * MIB,
        }
    }
}

fn gpu(memory_gib: u64, numa: usize) -> Gpu {
    Gpu { name: "test".into(), sms: 132, memory_bytes: memory_gib * GIB, numa: Some(numa), bus: None }
}

fn machine(gpus: Vec<Gpu>, links: &[Joined]) -> Topology {
    let host =
        CpuDevice { name: "host".into(), cores: (0..8).collect(), nodes: vec![], memory_bytes: 64 * GIB };
    Topology::new("machine".into(), host, gpus, links)
}

fn nvlinked(groups: &[&[usize]]) -> Vec<Joined> {
    let link = Link::usual(LinkKind::Nvlink);
    let pairs = |group: &&[usize]| {
        let group = group.to_vec();
        group.clone().into_iter().flat_map(move |a| group.clone().into_iter().map(move |b| (a, b)))
    };
    groups.iter().flat_map(pairs).filter(|(a, b)| a < b).map(|gpus| Joined { gpus, link }).collect()
}

fn on_gpus(count: usize) -> PlanDevices {
    PlanDevices::Gpus { usable: (0..count).collect(), utilization: 0.9, draft_sms: None }
}

fn request<'a>(
    target: &'a dyn Fn(&Share, &str) -> ShareBytes,
    draft: &'a dyn Fn(&Share, &str) -> ShareBytes,
    devices: PlanDevices,
) -> PlanRequest<'a> {
    PlanRequest {
        target: PlanModel { name: "target", whole: &TARGET, max_context: 131_072, bytes: target },
        draft: Some(PlanModel { name: "draft", whole: &DRAFT, max_context: 131_072, bytes: draft }),
        dtype: "bf16",
        other_dtypes: &[],
        target_ranks: 1,
        draft_ranks: 1,
        draft_place: DraftPlace::First,
        replicas: 1,
        devices,
        kv: KvRequest { block_size: 16, memory_bytes: None, max_running: 4, max_context: 4096 },
    }
}

fn gpus_of(plan: &Plan) -> Vec<Vec<DeviceId>> {
    plan.replicas.iter().map(|replica| replica.ranks.iter().map(|rank| rank.device).collect()).collect()
}

#[test]
fn groups_are_made_of_what_is_joined_best() {
    let (target, draft) = (bytes(1), bytes(1));
    // Bridges join 0 with 2 and 1 with 3.
    let machine = machine(vec![gpu(80, 0); 4], &nvlinked(&[&[0, 2], &[1, 3]]));
    let pairs = PlanRequest { target_ranks: 2, replicas: 2, ..request(&target, &draft, on_gpus(4)) };
    let placed = plan(&machine, &pairs).unwrap();
    let gpu = DeviceId::Gpu;
    assert_eq!(gpus_of(&placed), [vec![gpu(0), gpu(2)], vec![gpu(1), gpu(3)]]);
    assert!(
        placed.replicas.iter().all(|replica| replica.slowest_link.unwrap().link.kind == LinkKind::Nvlink)
    );
    assert!(!placed.warnings.iter().any(|text| text.contains("joined by")), "{:?}", placed.warnings);
    // All four are not joined by it.
    let four = PlanRequest { target_ranks: 4, replicas: 1, ..pairs };
    let warned = plan(&machine, &four).unwrap().warnings.join("\n");
    assert!(
        warned.contains("PCIe through the host (25 GB/s)") && warned.contains("NVLink joins"),
        "{warned}"
    );
}

#[test]
fn links_across_numa_nodes_are_warned_of() {
    let (target, draft) = (bytes(1), bytes(1));
    let machine = machine(vec![gpu(80, 0), gpu(80, 1)], &[]);
    let pair = PlanRequest { target_ranks: 2, ..request(&target, &draft, on_gpus(2)) };
    let warned = plan(&machine, &pair).unwrap().warnings.join("\n");
    assert!(warned.contains("cuda:0 and cuda:1 are joined by PCIe across NUMA nodes (15 GB/s)"), "{warned}");
    let alone = plan(&machine, &request(&target, &draft, on_gpus(2))).unwrap();
    assert_eq!(alone.replicas[0].slowest_link, None);
    assert!(alone.warnings.join("\n").contains("cuda:1 not used: room for device.replicas: 2"));
}

#[test]
fn drafts_are_where_they_are_asked_to_be() {
    let (target, draft) = (bytes(1), bytes(1));
    let machine = machine(vec![gpu(80, 0); 6], &[]);
    let of = |draft_place, draft_ranks| {
        let asked =
            PlanRequest { target_ranks: 4, draft_place, draft_ranks, ..request(&target, &draft, on_gpus(6)) };
        let placed = plan(&machine, &asked).unwrap();
        let held = |rank: &Rank| (rank.target.is_some(), rank.draft.as_ref().map(|draft| draft.share.ranks));
        placed.replicas[0].ranks.iter().map(held).collect::<Vec<_>>()
    };
    let (with, without) = ((true, Some(1)), (true, None));
    assert_eq!(of(DraftPlace::First, 1), [with, without, without, without]);
    assert_eq!(of(DraftPlace::First, 2), [(true, Some(2)), (true, Some(2)), without, without]);
    assert_eq!(of(DraftPlace::Replicated, 1), [with; 4]);
    let own = (false, Some(2));
    assert_eq!(of(DraftPlace::Own, 2), [without, without, without, without, own, own]);
}

#[test]
fn ranks_that_divide_the_sequences_leave_the_target_what_their_drafts_do_not_need() {
    let (target, draft) = (bytes(1), bytes(1));
    let machine = machine(vec![gpu(80, 0); 4], &[]);
    let of = |draft_place| {
        let asked = PlanRequest { target_ranks: 4, draft_place, ..request(&target, &draft, on_gpus(4)) };
        plan(&machine, &asked).unwrap().replicas.swap_remove(0)
    };
    let (first, replicated) = (of(DraftPlace::First), of(DraftPlace::Replicated));
    for rank in &replicated.ranks {
        let of = |shard: &Option<Shard>| shard.as_ref().map_or(0, |shard| shard.kv_bytes);
        // A token of the draft takes 4/5 of one of the target's share; and there are 5/16 as many.
        let (of_target, of_draft) = (of(&rank.target), of(&rank.draft));
        assert!(of_target > GIB && of_target.abs_diff(4 * of_draft) < MIB, "{rank:?}");
    }
    let times = replicated.kv_blocks as f64 / first.kv_blocks as f64;
    assert!((1.43..1.45).contains(&times), "{times}");
}

#[test]
fn what_does_not_go_together_is_refused_by_the_name_of_its_key() {
    let (target, draft) = (bytes(1), bytes(1));
    let machine = machine(vec![gpu(80, 0); 4], &[]);
    let base = request(&target, &draft, on_gpus(4));
    let refusal = |asked: PlanRequest<'_>| plan(&machine, &asked).unwrap_err().to_string();
    let three = refusal(PlanRequest { target_ranks: 3, ..base.clone() });
    assert!(
        three.contains("64 heads") && three.contains("`device.tensor_parallel` can be 1, 2, 4, 8"),
        "{three}"
    );
    let split = PlanRequest { draft_place: DraftPlace::Replicated, draft_ranks: 2, ..base.clone() };
    assert!(refusal(split).contains("whole draft on every rank"));
    let cpu = PlanDevices::Cpu { threads: None };
    let own = PlanRequest { draft_place: DraftPlace::Own, devices: cpu, ..base.clone() };
    assert!(refusal(own).contains("is for GPUs"));
    let long = KvRequest { max_context: 1 << 20, ..base.kv.clone() };
    assert!(
        refusal(PlanRequest { kv: long, ..base.clone() }).contains("longer than the target model's 131072")
    );
    let many = refusal(PlanRequest { target_ranks: 4, replicas: 2, ..base });
    assert!(many.contains("8 GPUs are needed (4 for a replica), and there are 4"), "{many}");
    assert!(many.contains("device.replicas: 1") && many.contains("8 GPUs such as this one"), "{many}");
}

/// The request with a change that a refusal named.
fn changed<'a>(request: &PlanRequest<'a>, machine: &Topology, words: &str) -> (PlanRequest<'a>, Topology) {
    let (mut request, mut machine) = (request.clone(), machine.clone());
    for change in words.split(" with ") {
        if let Some(count) = change.split_once(" GPUs such as") {
            let count: usize = count.0.parse().expect("a number");
            machine = Topology::new(machine.name, machine.host, vec![machine.gpus[0].clone(); count], &[]);
            if let PlanDevices::Gpus { usable, .. } = &mut request.devices {
                *usable = (0..count).collect();
            }
            continue;
        }
        match (change.split_once(": "), &mut request.devices) {
            (Some(("scheduler.max_context", tokens)), _) => {
                request.kv.max_context = tokens.parse().expect("a number");
            }
            (Some(("device.tensor_parallel", ranks)), _) => {
                request.target_ranks = ranks.parse().expect("a number");
            }
            (Some(("device.replicas", replicas)), _) => {
                request.replicas = replicas.parse().expect("a number");
            }
            (Some(("device.gpu_memory_utilization", share)), PlanDevices::Gpus { utilization, .. }) => {
                *utilization = share.parse().expect("a number");
            }
            (Some(("model.dtype", "bf16")), _) => request.dtype = "bf16",
            _ if change == "leave out kv.memory" => request.kv.memory_bytes = None,
            _ if change.starts_with("no draft model") => request.draft = None,
            other => panic!("{change}: {other:?}"),
        }
    }
    (request, machine)
}

fn held_once<'a>(ranges: impl Iterator<Item = &'a std::ops::Range<usize>>, total: usize) -> bool {
    ranges.flat_map(Clone::clone).eq(0..total)
}

/// Every slice of the model once, KV heads by rule.
fn check_group(shards: &[&Shard], whole: &Divisible) {
    let ranks = shards.len();
    assert!(
        shards.iter().enumerate().all(|(rank, shard)| (shard.share.rank, shard.share.ranks) == (rank, ranks))
    );
    assert!(shards.iter().all(|shard| shard.share.layers == (0..whole.layers)));
    assert!(held_once(shards.iter().map(|shard| &shard.share.heads), whole.heads));
    assert!(held_once(shards.iter().map(|shard| &shard.share.columns), whole.columns));
    assert!(held_once(shards.iter().map(|shard| &shard.share.tokens), whole.tokens));
    let holders = |head: usize| shards.iter().filter(|shard| shard.share.kv_heads.contains(&head)).count();
    assert!((0..whole.kv_heads).all(|head| holders(head) == (ranks / whole.kv_heads).max(1)));
    for shard in shards {
        // The KV heads that its query heads read, and no others.
        let read = |head: usize| head * whole.kv_heads / whole.heads;
        assert_eq!(read(shard.share.heads.start), shard.share.kv_heads.start);
        assert_eq!(read(shard.share.heads.end - 1) + 1, shard.share.kv_heads.end);
    }
}

fn check_plan(machine: &Topology, request: &PlanRequest<'_>, placed: &Plan) {
    assert_eq!(placed.replicas.len(), request.replicas);
    let mut on: BTreeMap<DeviceId, (u64, usize)> = BTreeMap::new();
    for replica in &placed.replicas {
        assert!(replica.kv_tokens >= request.kv.max_context && replica.sequences >= 1);
        assert_eq!(replica.kv_tokens, replica.kv_blocks * request.kv.block_size);
        let targets: Vec<&Shard> = replica.ranks.iter().filter_map(|rank| rank.target.as_ref()).collect();
        assert_eq!(targets.len(), request.target_ranks);
        check_group(&targets, request.target.whole);
        let drafts: Vec<&Shard> = replica.ranks.iter().filter_map(|rank| rank.draft.as_ref()).collect();
        match (request.draft, request.draft_place) {
            (None, _) => assert!(drafts.is_empty()),
            (Some(draft), DraftPlace::Replicated) => {
                assert_eq!(drafts.len(), targets.len());
                drafts.iter().for_each(|copy| check_group(&[copy], draft.whole));
            }
            (Some(draft), _) => {
                assert_eq!(drafts.len(), request.draft_ranks);
                check_group(&drafts, draft.whole);
            }
        }
        for rank in &replica.ranks {
            let shards = [&rank.target, &rank.draft].into_iter().flatten();
            let taken =
                shards.map(|shard| shard.weight_bytes + shard.kv_bytes + shard.workspace_bytes).sum::<u64>();
            let sum = on.entry(rank.device).or_default();
            *sum = (sum.0 + taken, sum.1 + 1);
            check_lanes(machine, rank);
        }
    }
    assert_eq!(placed.devices.len(), on.len());
    for load in &placed.devices {
        let (bytes, ranks) = on[&load.device];
        assert_eq!(load.used_bytes(), bytes);
        assert!(load.used_bytes() <= load.budget_bytes && load.budget_bytes <= load.memory_bytes);
        assert!(ranks == 1 || load.device == DeviceId::Cpu);
    }
}

fn check_lanes(machine: &Topology, rank: &Rank) {
    for (number, lanes) in rank.partitions.iter().enumerate() {
        match (lanes, rank.device) {
            (Lanes::Sms { draft_sms, verify_sms }, DeviceId::Gpu(gpu)) => {
                let sms = machine.gpus[gpu].sms;
                assert!(*draft_sms <= sms && *verify_sms <= sms);
                let both_have_all = *draft_sms == sms && *verify_sms == sms;
                let shared_out = draft_sms + verify_sms == sms && *draft_sms > 0 && *verify_sms > 0;
                assert!(number == 0 || shared_out || both_have_all);
                assert!(
                    (*draft_sms > 0) == rank.draft.is_some() && (*verify_sms > 0) == rank.target.is_some()
                );
            }
            (Lanes::Cores(pair), DeviceId::Cpu) => {
                assert_eq!(pair.verify.cores.is_empty(), rank.target.is_none());
                assert_eq!(pair.draft.cores.is_empty(), rank.draft.is_none());
            }
            other => panic!("{other:?}"),
        }
    }
}

prop_compose! {
    fn gpus()(cards in prop::collection::vec((prop::sample::select(&[8u64, 24, 80, 141]), 0usize..2), 1..9)) -> Vec<Gpu> {
        cards.into_iter().map(|(memory, numa)| gpu(memory, numa)).collect()
    }
}

prop_compose! {
    fn shapes()(layers in 1usize..90, kv_log in 0u32..4, group in prop::sample::select(&[1usize, 2, 4, 8]),
                columns in 1usize..64, tokens in 100usize..200_000) -> Divisible {
        let kv_heads = 1 << kv_log;
        Divisible { layers, heads: kv_heads * group, kv_heads, columns: 64 * columns, tokens }
    }
}

proptest! {
    #[test]
    fn plans_fit_and_refusals_name_what_would(
        gpus in gpus(), bridges in prop::collection::vec((0usize..8, 0usize..8), 0..6),
        target_whole in shapes(), draft_whole in shapes(), scale in 1u64..400, drafts in any::<bool>(),
        ranks_log in 0u32..4, draft_log in 0u32..2, place in 0usize..3, replicas in 1usize..4, on_cpu in prop::bool::weighted(0.2),
        f32 in any::<bool>(), context_log in 8u32..16, kv_gib in prop::option::weighted(0.3, 1u64..40),
    ) {
        let fast = Link::usual(LinkKind::Nvlink);
        let count = gpus.len();
        let links: Vec<Joined> = bridges.into_iter().filter(|(a, b)| a < b && *b < count)
            .map(|gpus| Joined { gpus, link: fast }).collect();
        let machine = machine(gpus, &links);
        let (target, draft) = (bytes(scale), bytes(1));
        let devices = if on_cpu { PlanDevices::Cpu { threads: None } } else { on_gpus(count) };
        let base = request(&target, &draft, devices);
        let asked = PlanRequest {
            target: PlanModel { whole: &target_whole, ..base.target },
            draft: base.draft.filter(|_| drafts).map(|draft| PlanModel { whole: &draft_whole, ..draft }),
            dtype: if f32 { "f32" } else { "bf16" },
            other_dtypes: if f32 { &["bf16"] } else { &[] },
            target_ranks: 1 << ranks_log,
            draft_ranks: 1 << draft_log,
            draft_place: [DraftPlace::First, DraftPlace::Replicated, DraftPlace::Own][place],
            replicas,
            kv: KvRequest { max_context: 1 << context_log, memory_bytes: kv_gib.map(|gib| gib * GIB), ..base.kv.clone() },
            ..base
        };
        match plan(&machine, &asked) {
            Ok(placed) => check_plan(&machine, &asked, &placed),
            Err(refusal) => {
                match refusal.problem {
                    Problem::Asked(_) => prop_assert!(refusal.would_fit.is_empty()),
                    Problem::Devices { needed, there, .. } => prop_assert!(needed > there && there == count),
                    Problem::Weights { needed_bytes, budget_bytes, .. } => prop_assert!(needed_bytes > budget_bytes),
                    Problem::KvMemory { asked_bytes, left_bytes, .. } => prop_assert!(asked_bytes > left_bytes),
                    Problem::Context { needed_bytes, kv_bytes, .. } => prop_assert!(needed_bytes > kv_bytes),
                }
                for words in &refusal.would_fit {
                    let (changed, machine) = changed(&asked, &machine, words);
                    let placed = plan(&machine, &changed);
                    prop_assert!(placed.is_ok(), "{} does not do: {:?}", words, placed);
                    check_plan(&machine, &changed, &placed.unwrap());
                    if words.contains("scheduler.max_context") {
                        let mut longer = changed.clone();
                        longer.kv.max_context += longer.kv.block_size;
                        prop_assert!(plan(&machine, &longer).is_err(), "{} is not all", words);
                    }
                }
            }
        }
    }
}
