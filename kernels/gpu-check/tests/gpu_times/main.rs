//! How long passes take on GPUs that are not here: by a model of time over what streams are asked for, which is recorded of the real runners over a
//! fake driver. What a pass launches and reads, and the times that follow, are golden numbers: `golden.txt`.

#[path = "../../../tests/cuda_fake/mod.rs"]
mod cuda_fake;
mod recorded;
mod recording;
mod time_model;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use faser_gpu_check::known_passes;
use recorded::Step;
use recording::record;
use time_model::{GPUS, microseconds, takes};

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
    for case in known_passes() {
        let (steps, read_bytes) = record(&case);
        println!("{case}");
        by_kind(&steps);
        let launches = steps.iter().filter(|step| step.is_launch()).count();
        let read_mb = steps.iter().map(Step::read_bytes).sum::<f64>() / 1e6;
        let operations = steps.iter().map(Step::operations).sum::<f64>();
        let floor_ms = 1e3 * f64::max(read_bytes / GPUS[0].bytes_per_s, operations / GPUS[0].flops);
        write!(text, "{launches:8}  {read_mb:7.0}  {floor_ms:8.3}").expect("memory");
        let times: Vec<f64> = GPUS.iter().map(|gpu| microseconds(gpu, case.pass, &steps) / 1e3).collect();
        times.iter().for_each(|ms| write!(text, "  {ms:8.3}").expect("memory"));
        writeln!(text, "  {:3.0} %  {}", 100.0 * floor_ms / times[0], case).expect("memory");
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
