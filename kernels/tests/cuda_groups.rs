//! Groups of GPUs through cudarc, over a fake driver and a fake NCCL: what ranks sum and gather, and every way to lose one of them.

mod cuda_fake;

use cuda_fake::inside;
use faser_kernels::CollectiveError;
use faser_kernels::cuda::{
    Arena, CudaError, CudaLane, DeviceBuffer, Element, Flags, Gpu, GroupTerms, NcclRankSlot, Ptr, Share,
    SmallSums, SumRanksArgs, nccl_group, nccl_version,
};
use half::bf16;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

const PATIENT: Duration = Duration::from_secs(60);
const FOUR: (&str, &str) = ("FASER_FAKE_GPUS", "4");
const BY_NCCL: (&str, &str) = ("FASER_FAKE_PEERS", "none");

/// A rank's lane, and memory for a test.
struct Rank {
    lane: CudaLane,
    arena: Arena,
    small_sums: SmallSums,
}

impl Rank {
    fn open(ordinal: usize, slot: &NcclRankSlot) -> Result<Rank, CudaError> {
        Rank::open_in_order(ordinal, slot, false)
    }

    fn open_in_order(ordinal: usize, slot: &NcclRankSlot, in_order: bool) -> Result<Rank, CudaError> {
        let gpu = Gpu::open(ordinal, None)?;
        let arena = Arena::new(&gpu, 1 << 20, "a test")?;
        let mut lane = CudaLane::new(&[Share::whole(&gpu)], false)?;
        let small_sums = lane.join(slot, in_order)?;
        Ok(Rank { lane, arena, small_sums })
    }

    /// The sum over the ranks of what each brings.
    fn sum(&mut self, own: &[f32]) -> Result<Vec<f32>, CudaError> {
        self.arena.clear();
        self.arena.put(own);
        // What was put in comes back from the same place.
        self.arena.clear();
        let (at, place) = self.arena.reserve::<f32>(own.len());
        self.lane.send(&mut self.arena)?;
        self.lane.all_reduce_sum(at, own.len(), Element::F32)?;
        self.lane.fetch(&mut self.arena)?;
        self.lane.wait(&mut || {})?;
        Ok(self.arena.get::<f32>(place).to_vec())
    }

    /// Asks for the calls of many layers, each a sum of what the rank has, before it waits for any; the last sum.
    fn ask_far_ahead(&mut self, calls: usize, own: f32) -> Result<f32, CudaError> {
        self.arena.clear();
        self.arena.put(&[own, 0.0]);
        self.arena.clear();
        let (from, place) = self.arena.reserve::<f32>(2);
        let to = Ptr(from.0 + 4);
        self.lane.send(&mut self.arena)?;
        for _ in 0..calls {
            self.lane.clear(to, 4)?;
            self.lane.copy(from, to, 4)?;
            self.lane.all_reduce_sum(to, 1, Element::F32)?;
        }
        self.lane.fetch(&mut self.arena)?;
        self.lane.wait(&mut || {})?;
        Ok(self.arena.get::<f32>(place)[1])
    }
}

/// Runs every rank of a group on a thread and a GPU of its own.
fn on_ranks<T: Send>(
    ranks: usize,
    deadline: Duration,
    run: impl Fn(usize, Result<Rank, CudaError>) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    let slots = nccl_group(ranks, GroupTerms::within(deadline)).expect("the fake NCCL is there");
    thread::scope(|scope| {
        let start =
            |slot: NcclRankSlot| scope.spawn(move || run(slot.rank(), Rank::open(slot.rank(), &slot)));
        let threads: Vec<_> = slots.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn words<T>(outcome: Result<T, CudaError>) -> String {
    outcome.err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn sums_and_gathered_values_are_the_same_on_every_rank() {
    let name = "sums_and_gathered_values_are_the_same_on_every_rank";
    let Some(report) = sums_and_gathers(name, &[FOUR]) else { return };
    // Sums of bf16, of each rank of each group; a group of one has none of other GPUs' memory. Two of each rank are tried first.
    assert!(report.contains("all-reduces 27\n") && report.contains("runs of sum_ranks 138\n"), "{report}");
}

#[test]
fn nccl_sums_and_gathers_where_gpus_may_not_write_each_others_memory() {
    let name = "nccl_sums_and_gathers_where_gpus_may_not_write_each_others_memory";
    let Some(report) = sums_and_gathers(name, &[FOUR, BY_NCCL]) else { return };
    assert!(report.contains("all-reduces 147\n") && !report.contains("sum_ranks"), "{report}");
}

/// What groups of one, two and four ranks add up and gather is right.
fn sums_and_gathers(name: &str, variables: &[(&str, &str)]) -> Option<String> {
    let report = inside(name, variables, || {
        for ranks in [1, 2, 4] {
            let found = on_ranks(ranks, PATIENT, |rank, lane| {
                let mut own = lane.expect("a lane");
                assert_eq!((own.lane.rank(), own.lane.ranks()), (rank, ranks));
                let mut sums = Vec::new();
                for call in 0..20 {
                    let values: Vec<f32> =
                        (0..1 + call).map(|i| (rank * 100 + call * 10 + i) as f32).collect();
                    sums.push(own.sum(&values).expect("a sum"));
                }
                // Numbers of 16 bits, and words that are no numbers.
                let Rank { lane, arena, .. } = &mut own;
                arena.clear();
                let (halves, in_halves) = arena.reserve::<bf16>(8);
                let (mine, _) = arena.reserve::<u32>(1);
                let (all, in_all) = arena.reserve::<u32>(ranks);
                arena.clear();
                arena.put(&[bf16::from_f32(0.5 + rank as f32); 8]);
                arena.put(&[0xffff_0000 | rank as u32]);
                arena.reserve::<u32>(ranks);
                lane.send(arena).expect("a call");
                lane.all_reduce_sum(halves, 8, Element::Bf16).expect("a call");
                lane.all_gather(mine, all, 1).expect("a call");
                lane.fetch(arena).expect("a call");
                lane.wait(&mut || {}).expect("a call");
                let sum = (0..ranks).map(|rank| 0.5 + rank as f32).sum();
                assert_eq!(arena.get::<bf16>(in_halves), [bf16::from_f32(sum); 8]);
                let words: Vec<u32> = (0..ranks as u32).map(|rank| 0xffff_0000 | rank).collect();
                assert_eq!(arena.get::<u32>(in_all), words);
                sums
            });
            for (call, sums) in found[0].iter().enumerate() {
                let sum = |i| (0..ranks).map(|rank| (rank * 100 + call * 10 + i) as f32).sum::<f32>();
                assert_eq!(*sums, (0..1 + call).map(sum).collect::<Vec<_>>());
            }
            assert!(found.iter().all(|other| *other == found[0]));
        }
    });
    let report = report?;
    for line in ["memory left 0\n", "streams left 0\n", "communicators made 7\n", "communicators left 0\n"] {
        assert!(report.contains(line), "{report}");
    }
    Some(report)
}

#[test]
fn a_sum_over_peers_has_the_bits_of_one_in_the_order_of_the_ranks_however_long_it_is() {
    let name = "a_sum_over_peers_has_the_bits_of_one_in_the_order_of_the_ranks_however_long_it_is";
    let report = inside(name, &[FOUR], || {
        let value = |rank: usize, i: usize| ((i * 37 + rank * 101) % 1009) as f32 * 0.1 - 40.0 * rank as f32;
        for ranks in [2, 3, 4] {
            on_ranks(ranks, PATIENT, |rank, lane| {
                let mut lane = lane.expect("a lane");
                // Of one block, of several, with a rest, and as one number.
                for len in [1, 4, 1023, 1024, 1028, 5000, 40_001, 130_000] {
                    let own: Vec<f32> = (0..len).map(|i| value(rank, i)).collect();
                    let sum = |i| (1..ranks).fold(value(0, i), |sum, rank| sum + value(rank, i));
                    let found = lane.sum(&own).expect("a sum");
                    assert!((0..len).all(|i| found[i].to_bits() == sum(i).to_bits()), "{ranks} ranks, {len}");
                }
            });
        }
    });
    assert!(report.is_none_or(|report| report.contains("all-reduces 0\n")));
}

#[test]
fn sums_over_peers_are_captured_and_more_than_they_take_go_by_nccl_or_in_pieces() {
    let name = "sums_over_peers_are_captured_and_more_than_they_take_go_by_nccl_or_in_pieces";
    let report = inside(name, &[FOUR], || {
        for in_order in [false, true] {
            let slots = nccl_group(3, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
            thread::scope(|scope| {
                for (rank, slot) in slots.into_iter().enumerate() {
                    scope.spawn(move || {
                        let mut own = Rank::open_in_order(rank, &slot, in_order).expect("a lane");
                        let memory =
                            DeviceBuffer::zeroed(own.lane.gpu(), 4 << 20, "a long sum").expect("a call");
                        assert!(own.lane.captures_sums(1000));
                        assert_eq!(own.lane.captures_sums(1 << 20), in_order);
                        own.lane.all_reduce_sum(memory.ptr(), 1 << 20, Element::F32).expect("a call");
                        // Each time a graph runs, numbers become their sums: three times as many, since all ranks have the same.
                        own.arena.clear();
                        own.arena.put(&[1.0f32, 10.0]);
                        own.arena.clear();
                        let (at, place) = own.arena.reserve::<f32>(2);
                        own.lane.send(&mut own.arena).expect("a call");
                        own.lane.wait(&mut || {}).expect("a call");
                        own.lane.begin_capture().expect("a call");
                        for _ in 0..2 {
                            own.lane.all_reduce_sum(at, 2, Element::F32).expect("a call");
                        }
                        let graph = own.lane.end_capture().expect("a call");
                        for _ in 0..3 {
                            own.lane.replay(&graph).expect("a call");
                        }
                        own.lane.fetch(&mut own.arena).expect("a call");
                        own.lane.wait(&mut || {}).expect("a call");
                        assert_eq!(own.arena.get::<f32>(place), [729.0, 7290.0]);
                    });
                }
            });
        }
    });
    let Some(report) = report else { return };
    // One each of three ranks, and none where sums are in order; three pieces each, two sums in three replays each.
    assert!(report.contains("all-reduces 3\n") && report.contains("graphs captured 6\n"), "{report}");
    assert!(report.contains("memory left 0\n") && report.contains("graphs left 0\n"), "{report}");
}

#[test]
fn a_sum_over_peers_that_never_comes_ends_the_group_at_the_deadline() {
    let name = "a_sum_over_peers_that_never_comes_ends_the_group_at_the_deadline";
    let report = inside(name, &[FOUR, ("FASER_FAKE_PEERS_LOSE", "1:5")], || {
        let errors = on_ranks(2, Duration::from_secs(2), |_, lane| {
            let mut lane = lane.expect("a lane");
            (0..2).for_each(|_| assert_eq!(lane.sum(&[1.0]).expect("all come"), [2.0]));
            words(lane.sum(&[1.0]))
        });
        assert!(errors.iter().all(|error| error.contains("have not ended within 2000 ms")), "{errors:?}");
        let sums = on_ranks(2, PATIENT, |_, lane| lane.expect("a lane").sum(&[1.0]).expect("a sum"));
        assert_eq!(sums, [[2.0], [2.0]]);
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("streams left 0\n"), "{report}");
}

#[test]
fn ways_that_not_all_have_are_not_taken() {
    let name = "ways_that_not_all_have_are_not_taken";
    let report = inside(name, &[FOUR, ("FASER_FAKE_PEERS", "pairs")], || {
        for (ranks, expected) in [(2, SmallSums::Peers), (3, SmallSums::Nccl), (4, SmallSums::Nccl)] {
            let found = on_ranks(ranks, PATIENT, |_, lane| {
                let mut lane = lane.expect("a lane");
                assert_eq!(lane.sum(&[1.0]).expect("a sum"), [ranks as f32]);
                lane.small_sums
            });
            assert_eq!(found, vec![expected; ranks]);
        }
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("runs of sum_ranks 6\n"), "{report}");
}

#[test]
fn ways_that_do_not_do_what_the_driver_says_are_not_taken() {
    let name = "ways_that_do_not_do_what_the_driver_says_are_not_taken";
    for broken in
        [("FASER_FAKE_PEERS", "wrong"), ("FASER_FAKE_PEERS_LOSE", "1:1"), ("FASER_FAKE_PEERS_LOSE", "0:2")]
    {
        let report = inside(name, &[FOUR, broken], || {
            let found = on_ranks(3, Duration::from_secs(2), |_, lane| {
                let mut lane = lane.expect("a lane");
                assert_eq!(lane.sum(&[1.0, 2.0]).expect("a sum"), [3.0, 6.0]);
                assert!(!lane.lane.captures_sums(2));
                lane.small_sums
            });
            assert_eq!(found, [SmallSums::Unproven; 3]);
        });
        let Some(report) = report else { return };
        assert!(report.contains("memory left 0\n") && report.contains("all-reduces 3\n"), "{report}");
    }
}

#[test]
fn who_was_told_to_wait_no_more_brings_nothing_more() {
    inside("who_was_told_to_wait_no_more_brings_nothing_more", &[], || {
        let gpu = Gpu::open(0, None).expect("a call");
        let slot = SumRanksArgs::slot_len(8, 1);
        let bytes = SumRanksArgs::room_bytes(2, slot);
        let rooms = [(); 2].map(|()| DeviceBuffer::zeroed(&gpu, bytes, "a test").expect("a call"));
        let stops = [(); 2].map(|()| Flags::new(&gpu, 1).expect("a call"));
        let mut lanes = [(); 2].map(|()| CudaLane::new(&[Share::whole(&gpu)], false).expect("a call"));
        let mut arenas = [(); 2].map(|()| Arena::new(&gpu, 4096, "a test").expect("a call"));
        // Two calls of each rank: 1 and 10 of the first, 2 and 20 of the other.
        let mut ask = |rank: usize| {
            let (lane, arena) = (&mut lanes[rank], &mut arenas[rank]);
            let own = 1.0 + rank as f32;
            let at = [arena.put(&[own]), arena.put(&[10.0 * own])];
            lane.send(arena).expect("a call");
            for at in at {
                let mut args = SumRanksArgs {
                    rooms: [Ptr::NULL; SumRanksArgs::MOST_RANKS],
                    own: at,
                    out: at,
                    stop: stops[rank].ptr(),
                    len: 1,
                    slot: slot as u32,
                    ranks: 2,
                    rank: rank as u32,
                    gathers: 0,
                    halves: SumRanksArgs::BOTH_HALVES,
                };
                args.rooms.iter_mut().zip(&rooms).for_each(|(to, room)| *to = room.ptr());
                lane.launch(&args.launch(1)).expect("a call");
            }
            lane.fetch(arena).expect("a call");
        };
        (0..2).for_each(&mut ask);
        let [first, second] = &mut lanes;
        // The first is stopped while it waits for the other, whose calls come later.
        assert!(!first.look().expect("a call"));
        stops[0].set(0);
        first.wait(&mut || {}).expect("a call");
        // What the first had brought before is there, and nothing of its second call ever is.
        for _ in 0..100 {
            assert!(!second.look().expect("a call"));
        }
        stops[1].set(0);
        second.wait(&mut || {}).expect("a call");
        let found = arenas.map(|mut arena| {
            arena.clear();
            let places = [arena.reserve::<f32>(1).1, arena.reserve::<f32>(1).1];
            places.map(|place| arena.get::<f32>(place)[0])
        });
        assert_eq!(found, [[1.0, 10.0], [3.0, 20.0]]);
    });
}

#[test]
fn who_waits_in_the_driver_is_let_go_when_the_group_ends() {
    inside("who_waits_in_the_driver_is_let_go_when_the_group_ends", &[FOUR], || {
        let slots = nccl_group(2, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
        let asked = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut own = Rank::open(0, &slots[0]).expect("a lane");
                let memory = DeviceBuffer::zeroed(own.lane.gpu(), 4096, "a sum").expect("a call");
                own.lane.all_reduce_sum(memory.ptr(), 1, Element::F32).expect("a call");
                asked.wait();
                own.lane.gpu().finish().expect("a call");
                assert!(words(own.lane.wait(&mut || {})).contains("as was wished"));
            });
            let own = Rank::open(1, &slots[1]).expect("a lane");
            asked.wait();
            slots[1].abort("as was wished");
            drop(own);
        });
    });
}

#[test]
fn rooms_are_there_as_long_as_anything_queued_may_write_into_them() {
    let name = "rooms_are_there_as_long_as_anything_queued_may_write_into_them";
    let report = inside(name, &[FOUR], || {
        let slots = nccl_group(2, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
        let [asked, left] = [(); 2].map(|()| Barrier::new(2));
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut own = Rank::open(1, &slots[1]).expect("a lane");
                let memory = DeviceBuffer::zeroed(own.lane.gpu(), 8192, "a sum").expect("a call");
                // More than is done until it is seen that the group is over, and then a sum that nobody waits for.
                for _ in 0..5000 {
                    own.lane.clear(memory.ptr(), 4).expect("a call");
                }
                own.lane.all_reduce_sum(memory.ptr(), 1024, Element::F32).expect("a call");
                asked.wait();
                left.wait();
                let gpu = own.lane.gpu().clone();
                drop(own);
                gpu.finish().expect("a GPU that is well");
            });
            let own = Rank::open(0, &slots[0]).expect("a lane");
            asked.wait();
            slots[0].abort("as was wished");
            drop(own);
            left.wait();
        });
    });
    assert!(report.is_none_or(|report| report.contains("memory left 0\n")));
}

#[test]
fn sums_of_more_than_two_ranks_are_in_order_over_peers_or_refused() {
    let name = "sums_of_more_than_two_ranks_are_in_order_over_peers_or_refused";
    inside(name, &[FOUR, BY_NCCL], || {
        for (ranks, refused) in [(2, false), (3, true)] {
            let slots = nccl_group(ranks, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
            let found: Vec<String> = thread::scope(|scope| {
                let open = |(rank, slot): (usize, NcclRankSlot)| {
                    scope.spawn(move || words(Rank::open_in_order(rank, &slot, true)))
                };
                let threads: Vec<_> = slots.into_iter().enumerate().map(open).collect();
                threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
            });
            let says = |words: &String| words.contains("`device.deterministic: false`") == refused;
            assert!(found.iter().all(says), "{found:?}");
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_and_ends_the_group() {
    inside("a_rank_that_does_not_come_is_named_and_ends_the_group", &[FOUR], || {
        let over = Barrier::new(3);
        let errors = on_ranks(3, Duration::from_secs(2), |rank, lane| {
            let mut lane = lane.expect("a lane");
            lane.sum(&[1.0]).expect("all come");
            if rank == 1 {
                over.wait();
                return (words(lane.sum(&[1.0])), String::new());
            }
            let first = words(lane.sum(&[1.0]));
            over.wait();
            // It stays so.
            (first, words(lane.sum(&[1.0])))
        });
        for (rank, (first, later)) in errors.iter().enumerate() {
            assert!(first.contains("rank 1 of 3 has not come within 2000 ms"), "{errors:?}");
            assert!(rank == 1 || later.contains("the group was aborted"), "{errors:?}");
        }
    });
}

#[test]
fn a_full_launch_queue_keeps_no_rank_from_ending_the_group() {
    let name = "a_full_launch_queue_keeps_no_rank_from_ending_the_group";
    inside(name, &[FOUR, ("FASER_FAKE_QUEUE", "256")], || {
        let over = Barrier::new(2);
        let outcomes = on_ranks(2, Duration::from_secs(2), |rank, lane| {
            let mut lane = lane.expect("a lane");
            assert_eq!(lane.ask_far_ahead(1000, 1.0 + rank as f32).expect("all come"), 3.0);
            let outcome = if rank == 0 { words(lane.ask_far_ahead(1000, 1.0)) } else { String::new() };
            over.wait();
            outcome
        });
        assert!(outcomes[0].contains("rank 1 of 2 has not come within 2000 ms"), "{outcomes:?}");
    });
}

#[test]
fn a_call_that_never_ends_on_the_device_ends_the_group_at_the_deadline() {
    let name = "a_call_that_never_ends_on_the_device_ends_the_group_at_the_deadline";
    let report = inside(name, &[FOUR, BY_NCCL, ("FASER_FAKE_NCCL_LOSE", "1:3")], || {
        let errors = on_ranks(2, Duration::from_secs(2), |_, lane| {
            let mut lane = lane.expect("a lane");
            (0..2).for_each(|_| assert_eq!(lane.sum(&[1.0]).expect("all come"), [2.0]));
            words(lane.sum(&[1.0]))
        });
        assert!(errors.iter().all(|error| error.contains("have not ended within 2000 ms")), "{errors:?}");
        // GPUs and memory are as before: a new group works.
        let sums = on_ranks(2, PATIENT, |_, lane| lane.expect("a lane").sum(&[1.0]).expect("a sum"));
        assert_eq!(sums, [[2.0], [2.0]]);
    });
    let Some(report) = report else { return };
    assert!(report.contains("memory left 0\n") && report.contains("communicators left 0\n"), "{report}");
}

#[test]
fn what_nccl_reports_ends_the_group_for_all() {
    let planted = [FOUR, BY_NCCL, ("FASER_FAKE_NCCL_FAIL", "0:2")];
    inside("what_nccl_reports_ends_the_group_for_all", &planted, || {
        let errors = on_ranks(3, PATIENT, |_, lane| {
            let mut lane = lane.expect("a lane");
            lane.sum(&[1.0]).expect("all come");
            words(lane.sum(&[1.0]))
        });
        assert!(
            errors.iter().all(|error| error.contains("NCCL failed in a collective: ncclRemoteError")),
            "{errors:?}"
        );
    });
}

#[test]
fn who_leaves_ends_the_group_but_not_calls_that_all_have_come_to() {
    inside("who_leaves_ends_the_group_but_not_calls_that_all_have_come_to", &[FOUR], || {
        let outcomes = on_ranks(2, PATIENT, |rank, lane| {
            let mut lane = lane.expect("a lane");
            let done = lane.sum(&[1.0]);
            // Rank 1 leaves here.
            (words(done), if rank == 0 { words(lane.sum(&[1.0])) } else { String::new() })
        });
        assert_eq!((&*outcomes[0].0, &*outcomes[1].0), ("", ""));
        assert!(outcomes[0].1.contains("rank 1 has left"), "{outcomes:?}");
    });
}

#[test]
fn a_lost_gpu_and_a_lane_that_cannot_be_built_are_told_to_the_others() {
    let name = "a_lost_gpu_and_a_lane_that_cannot_be_built_are_told_to_the_others";
    inside(name, &[FOUR], || {
        let slots = nccl_group(2, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
        slots[1].abort("there is no memory on GPU 1");
        assert!(words(Rank::open(0, &slots[0])).contains("there is no memory on GPU 1"));
        // Two ranks on one GPU are refused, and the first does not wait for the second.
        let slots = nccl_group(2, GroupTerms::within(PATIENT)).expect("the fake NCCL is there");
        let errors: Vec<String> = thread::scope(|scope| {
            let threads: Vec<_> =
                slots.iter().map(|slot| scope.spawn(|| words(Rank::open(0, slot)))).collect();
            threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
        });
        assert!(errors.iter().all(|error| error.contains("ncclInvalidUsage (as planted)")), "{errors:?}");
    });
}

#[test]
fn ranks_with_different_plans_say_so() {
    inside("ranks_with_different_plans_say_so", &[FOUR], || {
        let begun = Barrier::new(2);
        let outcomes = on_ranks(2, PATIENT, |rank, lane| {
            let mut lane = lane.expect("a lane").lane;
            (0..3).for_each(|plan| lane.agree_on(plan).expect("the same plan"));
            let outcome = lane.agree_on(7 + rank as u64);
            begun.wait();
            words(outcome)
        });
        // Who comes second says it.
        assert_eq!(outcomes.iter().filter(|words| words.is_empty()).count(), 1, "{outcomes:?}");
        let said = outcomes.concat();
        assert!(
            said == "rank 0 has plan 7, this rank plan 8" || said == "rank 1 has plan 8, this rank plan 7",
            "{said}"
        );
    });
}

#[test]
fn flags_and_rows_are_copied_when_their_turn_comes() {
    inside("flags_and_rows_are_copied_when_their_turn_comes", &[], || {
        let gpu = Gpu::open(0, None).expect("a call");
        let mut lane = CudaLane::new(&[Share::whole(&gpu)], false).expect("a call");
        let flags = Flags::new(&gpu, 3).expect("a call");
        let mut arena = Arena::new(&gpu, 4096, "a test").expect("a call");
        let from = arena.put(&[1u32, 2, 3, 4, 5, 6]);
        let (to, rows) = arena.reserve::<u32>(12);
        let (seen, place) = arena.reserve::<u32>(3);
        lane.send(&mut arena).expect("a call");
        lane.clear(to, 48).expect("a call");
        lane.copy_rows((from, 12), (to, 20), 8, 2).expect("a call");
        lane.snapshot(&flags, 3, seen).expect("a call");
        // The lane has not come to it yet.
        flags.set(1);
        lane.fetch(&mut arena).expect("a call");
        lane.wait(&mut || {}).expect("a call");
        assert_eq!(arena.get::<u32>(rows)[..8], [1, 2, 0, 0, 0, 4, 5, 0]);
        assert_eq!(arena.get::<u32>(place), [0, 1, 0]);
    });
}

#[test]
fn nccl_that_is_too_old_or_not_there_is_refused_with_what_to_do() {
    let name = "nccl_that_is_too_old_or_not_there_is_refused_with_what_to_do";
    inside(name, &[("FASER_FAKE_NCCL", "21003")], || {
        let refusal = words(nccl_group(2, GroupTerms::within(PATIENT)));
        assert!(refusal.contains("NCCL 2.10.3 is too old") && refusal.contains("pip install"), "{refusal}");
    });
    // On this machine as it is.
    match nccl_version() {
        Ok(version) => assert!(version >= 21_800),
        Err(CudaError::Library(error)) => {
            let words = error.to_string();
            assert!(
                words.contains("NCCL is not found (as libnccl.so.2") && words.contains("pip install"),
                "{words}"
            );
        }
        Err(other) => assert!(matches!(other, CudaError::OldNccl { .. }), "{other}"),
    }
}

#[test]
fn errors_of_a_group_are_told_as_they_are() {
    let error = CudaError::from(CollectiveError::Aborted { why: "the device is lost".to_owned() });
    assert_eq!(error.to_string(), "the group was aborted: the device is lost");
}
