//! How long passes take on GPUs that are not here: by a model of time over what streams are asked for, which is recorded of the real runners over a
//! fake driver. What a pass launches and reads, and the times that follow, are golden numbers: `golden.txt`.

#[path = "../../../tests/cuda_fake/mod.rs"]
mod cuda_fake;
mod recorded;
mod recording;
mod shapes;
mod time_model;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use faser_gpu_check::Load;
use recorded::Step;
use recording::{Pass, record};
use shapes::Shape;
use time_model::{GPUS, microseconds, takes};

/// What is predicted: a model, the GPUs that it is split over, a load, and what is done with it.
const CASES: [(Shape, usize, Load, Pass); 35] = [
    (Shape::Llama1B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen8B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600M, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Qwen600M, 1, Load { sequences: 32, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8B, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen8B, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 4, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3B, 1, Load { sequences: 1, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8BInt4, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600MInt4, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, 1, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Llama8BFp8, 8, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen600MFp8, 1, Load { sequences: 1, rows: 5, context: 512 }, Pass::DraftStep),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BFp8, 1, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BInt4, 1, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Qwen30BA3BInt4, 1, Load { sequences: 16, rows: 1, context: 512 }, Pass::Verify),
];

/// What is predicted of deterministic passes.
const DETERMINISTIC: [(Shape, Load, Pass); 7] = [
    (Shape::Llama8B, Load { sequences: 1, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 16, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8B, Load { sequences: 1, rows: 2048, context: 2048 }, Pass::Prefill),
    (Shape::Qwen30BA3B, Load { sequences: 64, rows: 1, context: 512 }, Pass::Verify),
    (Shape::Llama8BInt4, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
    (Shape::Llama8BFp8, Load { sequences: 128, rows: 4, context: 512 }, Pass::Verify),
];

#[test]
fn passes_launch_read_and_take_what_is_written_down() {
    let name = "passes_launch_read_and_take_what_is_written_down";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-times-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let file = folder.join("record");
    let path = file.to_str().expect("a path of this machine").to_owned();
    let variables =
        [(recording::FILE, path.as_str()), ("FASER_FAKE_GPUS", "8"), ("FASER_FAKE_MEMORY", "141000000000")];
    let report = cuda_fake::inside(name, &variables, || {
        let found = table();
        println!("{found}");
        let golden = include_str!("golden.txt");
        assert_eq!(found, golden, "what passes launch has changed: golden.txt of this test is to say so");
    });
    std::fs::remove_dir_all(&folder).expect("it was ours");
    // Nothing is left of what was only address space.
    assert!(report.is_none_or(|report| report.contains("memory left 0\nstreams left 0\n")));
}

fn table() -> String {
    let mut text = String::from("launches  read MB  floor ms");
    GPUS.iter().for_each(|gpu| write!(text, "  {:>8}", gpu.name).expect("memory"));
    text.push_str("  of the floor, on the first GPU\n");
    let deterministic = DETERMINISTIC.map(|(shape, load, pass)| ((shape, 1, load, pass), true));
    for ((shape, ranks, load, pass), deterministic) in
        CASES.map(|case| (case, false)).into_iter().chain(deterministic)
    {
        let (steps, read_bytes) = record(shape, ranks, load, pass, deterministic);
        let how = if deterministic { ", deterministic" } else { "" };
        println!("{} on {ranks}{how}: {pass}, {load:?}", shape.name());
        by_kind(&steps);
        let launches = steps.iter().filter(|step| step.is_launch()).count();
        let read_mb = steps.iter().map(Step::read_bytes).sum::<f64>() / 1e6;
        let operations = steps.iter().map(Step::operations).sum::<f64>();
        let floor_ms = 1e3 * f64::max(read_bytes / GPUS[0].bytes_per_s, operations / GPUS[0].flops);
        write!(text, "{launches:8}  {read_mb:7.0}  {floor_ms:8.3}").expect("memory");
        let times: Vec<f64> = GPUS.iter().map(|gpu| microseconds(gpu, pass, &steps) / 1e3).collect();
        times.iter().for_each(|ms| write!(text, "  {ms:8.3}").expect("memory"));
        let Load { sequences, rows, context } = load;
        let on = if ranks == 1 { String::new() } else { format!(" on {ranks} GPUs") };
        writeln!(
            text,
            "  {:3.0} %  {}{on}{how}: {pass} of {sequences} x {rows} rows at {context}",
            100.0 * floor_ms / times[0],
            shape.name()
        )
        .expect("memory");
    }
    text
}

/// Says what the time of the first GPU goes to, without what lies between.
fn by_kind(steps: &[Step]) {
    let mut kinds = BTreeMap::<&str, (usize, f64)>::new();
    for step in steps {
        let (count, us) = kinds.entry(&step.what).or_default();
        (*count, *us) = (*count + 1, *us + takes(&GPUS[0], step));
    }
    kinds.iter().for_each(|(what, (count, us))| println!("    {count:4} {what:20} {us:8.1} us"));
}
