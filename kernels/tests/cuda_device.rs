//! The device layer through cudarc, over a fake driver: what is found, opened, split, allocated and launched; and what goes wrong.

mod cuda_fake;

use cuda_fake::inside;
use faser_kernels::cuda::{
    Arena, CompactRowsArgs, CudaError, CudaLane, DeviceBuffer, Element, EmbedArgs, Event, Flags, Gpu,
    Product, Ptr, Share, Upload, are_prebuilt, libraries, nccl_library, probe,
};
use std::sync::Arc;

fn open() -> Arc<Gpu> {
    Gpu::open(0, None).expect("the fake GPU opens")
}

fn whole(gpu: &Arc<Gpu>) -> CudaLane {
    CudaLane::new(&[Share::whole(gpu)], false).expect("a lane")
}

/// The number behind these words in a report.
fn reported(report: &str, words: &str) -> usize {
    let line = report.lines().find_map(|line| line.strip_prefix(words));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or_else(|| panic!("no {words:?} in:\n{report}"))
}

#[test]
fn a_gpu_is_found_and_described() {
    inside("a_gpu_is_found_and_described", &[("FASER_FAKE_SMS", "108")], || {
        let found = probe().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].sms, found[0].arch()), (108, "sm_90".to_owned()));
        assert_eq!(found[0].name, "fake GPU");
        let refusal = Gpu::open(1, None).unwrap_err().to_string();
        assert!(refusal.contains("no GPU 1") && refusal.contains("0 (fake GPU)"), "{refusal}");
    });
}

#[test]
fn where_kernels_come_from_is_said() {
    inside("where_kernels_come_from_is_said", &[], || {
        let started = std::time::Instant::now();
        let gpu = open();
        println!("opened in {:.1} ms: {}", started.elapsed().as_secs_f64() * 1e3, gpu.kernels_from());
        let files = faser_kernels::cuda::files().len();
        let from = if are_prebuilt("sm_90") { "prebuilt" } else { "compiled" };
        let wanted = format!("kernels for sm_90: {files} files {from} by NVRTC 1");
        assert!(gpu.kernels_from().starts_with(&wanted), "{}", gpu.kernels_from());
        // None is made for what is no architecture.
        assert!(!are_prebuilt("sm_1"));
    });
}

#[test]
fn an_old_driver_is_refused_with_its_version() {
    inside("an_old_driver_is_refused_with_its_version", &[("FASER_FAKE_VERSION", "12020")], || {
        let refusal = probe().unwrap_err().to_string();
        assert!(refusal.contains("CUDA 12.2") && refusal.contains("550"), "{refusal}");
    });
}

#[test]
fn a_driver_of_cuda_12_takes_libraries_of_cuda_12_alone() {
    let name = "a_driver_of_cuda_12_takes_libraries_of_cuda_12_alone";
    inside(name, &[("FASER_FAKE_VERSION", "12040"), ("FASER_FAKE_LIBRARIES", "12")], || {
        let gpu = open();
        let found: Vec<_> = libraries("sm_90")
            .unwrap()
            .iter()
            .map(|found| (found.name, found.version.clone(), found.asked))
            .collect();
        let wanted = [
            ("driver of CUDA", "12.4", "libcuda.so.1"),
            ("NVRTC", "12.0", "libnvrtc.so.12"),
            ("cublasLt", "12.0.0", "libcublasLt.so.12"),
        ];
        assert_eq!(found, wanted.map(|(name, version, asked)| (name, version.to_owned(), asked)));
        // Streams of partitions came with 12.5.
        let refusal = Share::split(&gpu, 16).err().expect("no partitions").to_string();
        assert!(refusal.contains("12.4") && refusal.contains("12.5"), "{refusal}");
    });
}

#[test]
fn libraries_of_a_newer_cuda_than_the_drivers_are_refused() {
    let name = "libraries_of_a_newer_cuda_than_the_drivers_are_refused";
    inside(name, &[("FASER_FAKE_VERSION", "12040"), ("FASER_FAKE_LIBRARIES", "13")], || {
        let refusal = Gpu::open(0, None).unwrap_err().to_string();
        assert!(refusal.contains("NVRTC 13.0") && refusal.contains("nvidia-cuda-nvrtc-cu12"), "{refusal}");
    });
}

#[test]
fn libraries_are_found_by_the_names_that_wheels_have() {
    inside("libraries_are_found_by_the_names_that_wheels_have", &[], || {
        let found = libraries("sm_90").unwrap();
        assert_eq!(
            found.iter().map(|found| found.asked).collect::<Vec<_>>(),
            ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13"]
        );
        assert!(
            found.iter().all(|found| found.file.contains("/libcuda.so.1")),
            "one file with all names: {found:?}"
        );
        assert_eq!(
            nccl_library().unwrap().to_string().split(" at ").next(),
            Some("NCCL 2.30.3 (libnccl.so.2")
        );
    });
}

#[test]
fn a_driver_that_does_not_start_says_what_to_do() {
    let name = "a_driver_that_does_not_start_says_what_to_do";
    for (code, advice) in [
        ("802", "nvidia-fabricmanager"),
        ("803", "reboot after an update"),
        ("804", "cuda-compat"),
        ("999", "/dev/nvidia-uvm"),
        ("34", "stubs"),
        ("805", "nvidia-cuda-mps-control"),
        ("3", "nvidia-smi"),
    ] {
        inside(name, &[("FASER_FAKE_INIT", code), ("ADVICE", advice)], || {
            let (refusal, advice) = (probe().unwrap_err().to_string(), std::env::var("ADVICE").unwrap());
            assert!(refusal.contains("does not start") && refusal.contains(&advice), "{refusal}");
        });
    }
}

#[test]
fn splits_that_differ_and_green_contexts_that_are_missing_are_errors_and_leave_the_whole() {
    let name = "splits_that_differ_and_green_contexts_that_are_missing_are_errors_and_leave_the_whole";
    for (variable, value) in [("FASER_FAKE_GREEN", "none"), ("FASER_FAKE_GREEN", "uneven")] {
        let report = inside(name, &[(variable, value)], || {
            let gpu = open();
            match Share::split(&gpu, 16) {
                Err(error) => assert!(error.to_string().contains("SMs cannot be split"), "{error}"),
                Ok(pair) => {
                    assert_eq!((pair.draft.sms(), pair.verify.sms()), (18, 112), "two SMs are in neither");
                }
            }
            whole(&gpu).wait(&mut || {}).unwrap();
        });
        let Some(report) = report else { return };
        assert_eq!(reported(&report, "streams left"), 0);
    }
}

#[test]
fn a_kernel_runs_through_the_driver_and_what_it_wrote_comes_back() {
    let name = "a_kernel_runs_through_the_driver_and_what_it_wrote_comes_back";
    let report = inside(name, &[], || {
        let gpu = open();
        let mut lane = whole(&gpu);
        let table = DeviceBuffer::zeroed(&gpu, 5 * 3 * 4, "a table").unwrap();
        let mut upload = Upload::new(&gpu).unwrap();
        upload
            .values::<f32>(&table, 0, 15, |from, to| {
                to.iter_mut().zip(from..).for_each(|(x, i)| *x = (i / 3) as f32);
            })
            .unwrap();
        upload.finish().unwrap();
        let mut arena = Arena::new(&gpu, 4096, "a test").unwrap();
        for tokens in [vec![4u32, 0, 2], vec![1, 9]] {
            arena.clear();
            let rows = arena.put(&[tokens.len() as u32]);
            let ids = arena.put(&tokens);
            let (out, place) = arena.reserve::<f32>(tokens.len() * 3);
            lane.send(&mut arena).unwrap();
            let args = EmbedArgs {
                table: table.ptr(),
                tokens: ids,
                out,
                rows,
                cols: 3,
                vocabulary: 5,
                first: 0,
                held: 5,
                scale: 1.0,
            };
            let sms = lane.sms();
            lane.launch(&args.launch(Element::F32, 4, sms)).unwrap();
            lane.fetch(&mut arena).unwrap();
            let mut looks = 0;
            lane.wait(&mut || looks += 1).unwrap();
            assert!(looks > 0, "a lane waits");
            let found = arena.get::<f32>(place);
            for (token, row) in tokens.iter().zip(found.chunks(3)) {
                let right = |x: &f32| if *token < 5 { *x == *token as f32 } else { x.is_nan() };
                assert!(row.iter().all(right), "{token}: {row:?}");
            }
        }
        drop((lane, arena, table, upload));
        assert_eq!(gpu.memory().unwrap(), (1 << 30, 1 << 30));
    });
    let Some(report) = report else { return };
    assert_eq!((reported(&report, "memory left"), reported(&report, "streams left")), (0, 0));
    assert_eq!(reported(&report, "runs of embed_f32"), 2);
    assert_eq!(reported(&report, "launches on 132 SMs"), 2);
}

#[test]
fn partitions_are_pairs_of_complements_and_products_are_chosen_for_each() {
    let name = "partitions_are_pairs_of_complements_and_products_are_chosen_for_each";
    let report = inside(name, &[], || {
        let gpu = open();
        let pair = Share::split(&gpu, 13).unwrap();
        assert_eq!((pair.draft.sms(), pair.verify.sms()), (16, 116), "rounded up to groups of 8");
        for none in [0, 132, 200, 130] {
            let refusal = Share::split(&gpu, none).err().expect("nothing is left").to_string();
            assert!(refusal.contains("of 132"), "{refusal}");
        }
        let mut lane = CudaLane::new(&[Share::whole(&gpu), pair.draft, pair.verify], true).unwrap();
        let mut arena = Arena::new(&gpu, 4096, "a test").unwrap();
        for (partition, sms, add) in [(0, 132, false), (1, 16, true), (2, 116, false), (1, 16, false)] {
            lane.work_on(partition).unwrap();
            assert_eq!(lane.sms(), sms);
            arena.clear();
            let x = arena.put(&[1.0f32, 2.0, 3.0, 4.0]);
            let w = arena.put(&[1.0f32, 0.0, 0.0, 1.0, 10.0, 100.0]);
            let bias = arena.put(&[0.5f32, 0.0, 0.0]);
            let (out, place) = arena.reserve::<f32>(6);
            lane.send(&mut arena).unwrap();
            lane.clear(out, 24).unwrap();
            let product = Product {
                element: Element::F32,
                x,
                w,
                bias,
                out,
                rows: 2,
                inputs: 2,
                outputs: 3,
                add,
                records: None,
            };
            lane.multiply(&product).unwrap();
            lane.multiply(&Product { bias: Ptr::NULL, ..product }).unwrap();
            lane.fetch(&mut arena).unwrap();
            lane.wait(&mut || {}).unwrap();
            let mut once = [1.0, 2.0, 210.0, 3.0, 4.0, 430.0];
            if add {
                once.iter_mut().for_each(|x| *x *= 2.0);
                (once[0], once[3]) = (once[0] + 0.5, once[3] + 0.5);
            }
            assert_eq!(arena.get::<f32>(place), once);
        }
    });
    let Some(report) = report else { return };
    assert_eq!(reported(&report, "products on 16 SMs"), 4);
    assert_eq!(reported(&report, "products on 116 SMs"), 2);
    assert_eq!(reported(&report, "memory left"), 0);
}

#[test]
fn flags_are_seen_by_kernels_that_were_asked_for_before_they_were_set() {
    let name = "flags_are_seen_by_kernels_that_were_asked_for_before_they_were_set";
    inside(name, &[], || {
        let gpu = open();
        let mut lane = whole(&gpu);
        let flags = Flags::new(&gpu, 4).unwrap();
        flags.set(0);
        flags.clear();
        let mut arena = Arena::new(&gpu, 4096, "a test").unwrap();
        // One row of four numbers, the second of which is the flag's word: it moves to the front.
        let x = arena.put(&[7.0f32, 8.0]);
        let counts = arena.put(&[1u32, 0]);
        lane.send(&mut arena).unwrap();
        let args = CompactRowsArgs { x, keep: flags.ptr(), counts, cols: 1 };
        lane.launch(&args.launch()).unwrap();
        flags.set(0);
        lane.fetch(&mut arena).unwrap();
        lane.wait(&mut || {}).unwrap();
        let mut again = Arena::new(&gpu, 64, "a test").unwrap();
        let (ptr, place) = again.reserve::<f32>(1);
        lane.copy(x, ptr, 4).unwrap();
        lane.fetch(&mut again).unwrap();
        lane.wait(&mut || {}).unwrap();
        assert_eq!(again.get::<f32>(place), [8.0]);
    });
}

#[test]
fn a_lane_that_waits_for_an_event_sees_what_stands_before_it() {
    let name = "a_lane_that_waits_for_an_event_sees_what_stands_before_it";
    let report = inside(name, &[], || {
        let gpu = open();
        let pair = Share::split(&gpu, 16).unwrap();
        let mut writer = CudaLane::new(&[pair.verify], false).unwrap();
        let mut reader = CudaLane::new(&[pair.draft], true).unwrap();
        let (written, read) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
        let mut from = Arena::new(&gpu, 64, "a test").unwrap();
        let mut to = Arena::new(&gpu, 64, "a test").unwrap();
        let (out, place) = to.reserve::<u32>(1);
        let shared = DeviceBuffer::zeroed(&gpu, 4, "a test").unwrap();
        // Nobody has recorded it: nothing to wait for.
        reader.wait_for(&written).unwrap();
        for (number, waits) in [(1, true), (2, true), (3, false)] {
            from.clear();
            let value = from.put(&[number]);
            // Not before the last number was read.
            writer.wait_for(&read).unwrap();
            writer.send(&mut from).unwrap();
            writer.copy(value, shared.ptr(), 4).unwrap();
            writer.record(&written).unwrap();
            if waits {
                reader.wait_for(&written).unwrap();
            }
            reader.copy(shared.ptr(), out, 4).unwrap();
            reader.record(&read).unwrap();
            reader.fetch(&mut to).unwrap();
            // The writer's lane is waited for by nobody: it runs as far as the reader's needs.
            reader.wait(&mut || {}).unwrap();
            assert_eq!(to.get::<u32>(place), [if waits { number } else { number - 1 }]);
            writer.wait(&mut || {}).unwrap();
        }
        writer.begin_capture().unwrap();
        assert!(writer.record(&written).is_err() && writer.end_capture().is_err());
    });
    let Some(report) = report else { return };
    assert_eq!((reported(&report, "events left"), reported(&report, "memory left")), (0, 0));
}

#[test]
fn a_graph_asks_for_all_it_captured_with_what_lies_in_its_arrays_then() {
    let name = "a_graph_asks_for_all_it_captured_with_what_lies_in_its_arrays_then";
    let report = inside(name, &[], || {
        let gpu = open();
        let pair = Share::split(&gpu, 16).unwrap();
        let mut lane = CudaLane::new(&[Share::whole(&gpu), pair.draft], false).unwrap();
        let mut arena = Arena::new(&gpu, 4096, "a test").unwrap();
        // One row moves to the front, twice: the sum of both moves is where it began.
        let x = arena.put(&[1.0f32, 2.0, 3.0]);
        let (keep, counts) = (arena.put(&[1u32, 2]), arena.put(&[2u32, 0]));
        let args = CompactRowsArgs { x, keep, counts, cols: 1 };
        lane.work_on(1).unwrap();
        lane.begin_capture().unwrap();
        lane.launch(&args.launch()).unwrap();
        lane.launch(&args.launch()).unwrap();
        let graph = lane.end_capture().unwrap();
        let mut run = |values: [f32; 3]| {
            arena.clear();
            arena.put(&values);
            arena.put(&[1u32, 2]);
            arena.put(&[2u32, 0]);
            lane.send(&mut arena).unwrap();
            lane.replay(&graph).unwrap();
            arena.clear();
            let (_, place) = arena.reserve::<f32>(3);
            lane.fetch(&mut arena).unwrap();
            lane.wait(&mut || {}).unwrap();
            arena.get::<f32>(place).to_vec()
        };
        assert_eq!(run([1.0, 2.0, 3.0]), [3.0, 3.0, 3.0]);
        assert_eq!(run([4.0, 5.0, 6.0]), [6.0, 6.0, 6.0]);
        // What the host has to do with cannot be captured, and says so; the lane goes on.
        lane.begin_capture().unwrap();
        assert!(lane.fetch(&mut arena).is_err());
        assert!(lane.end_capture().is_err());
        lane.launch(&args.launch()).unwrap();
        lane.wait(&mut || {}).unwrap();
    });
    let Some(report) = report else { return };
    assert_eq!((reported(&report, "graphs captured"), reported(&report, "graphs left")), (1, 0));
    assert_eq!((reported(&report, "graphs launched"), reported(&report, "launches by graphs")), (2, 4));
    assert_eq!(reported(&report, "runs of compact_rows"), 5);
}

#[test]
fn memory_that_is_not_there_is_refused_with_numbers() {
    inside("memory_that_is_not_there_is_refused_with_numbers", &[("FASER_FAKE_MEMORY", "1000000")], || {
        let gpu = open();
        let most = DeviceBuffer::zeroed(&gpu, 900_000, "weights").unwrap();
        let refusal = DeviceBuffer::zeroed(&gpu, 200_000, "KV").err().expect("there is not so much");
        assert!(matches!(
            refusal,
            CudaError::OutOfMemory { wanted_bytes: 200_000, total_bytes: 1_000_000, .. }
        ));
        let words = refusal.to_string();
        assert!(words.contains("KV takes 200000") && words.contains("scheduler.max_running"), "{words}");
        drop(most);
        DeviceBuffer::zeroed(&gpu, 200_000, "KV").unwrap();
    });
}

#[test]
fn a_launch_that_is_refused_is_an_error_of_its_kernel() {
    let variables = [("FASER_FAKE_REFUSE", "compact_rows:2")];
    inside("a_launch_that_is_refused_is_an_error_of_its_kernel", &variables, || {
        let gpu = open();
        let mut lane = whole(&gpu);
        let memory = DeviceBuffer::zeroed(&gpu, 64, "a test").unwrap();
        let args = CompactRowsArgs { x: memory.ptr(), keep: memory.ptr(), counts: memory.ptr(), cols: 1 };
        lane.launch(&args.launch()).unwrap();
        let refusal = lane.launch(&args.launch()).unwrap_err().to_string();
        assert!(refusal.contains("compact_rows") && refusal.contains("OUT_OF_RESOURCES"), "{refusal}");
        lane.launch(&args.launch()).unwrap();
        lane.wait(&mut || {}).unwrap();
    });
}

#[test]
fn a_lost_device_fails_every_call_and_nothing_panics() {
    let variables = [("FASER_FAKE_LOSE", "compact_rows:1")];
    inside("a_lost_device_fails_every_call_and_nothing_panics", &variables, || {
        let gpu = open();
        let mut lane = whole(&gpu);
        let memory = DeviceBuffer::zeroed(&gpu, 64, "a test").unwrap();
        let args = CompactRowsArgs { x: memory.ptr(), keep: memory.ptr(), counts: memory.ptr(), cols: 1 };
        lane.launch(&args.launch()).unwrap();
        let failure = lane.wait(&mut || {}).unwrap_err().to_string();
        assert!(failure.contains("LAUNCH_FAILED"), "{failure}");
        assert!(lane.launch(&args.launch()).is_err() && gpu.memory().is_err());
    });
}
