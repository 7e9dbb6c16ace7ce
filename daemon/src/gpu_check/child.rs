//! One check in this process: its figures as lines of JSON on standard output, then how it ended.

use std::panic::{AssertUnwindSafe, catch_unwind};

use faser_actors::gpu_check::{Bound, Figure, Report, Setting};
use serde_json::{Value, json};

use super::GpuCheckArgs;
use super::table::CHECKS;
use crate::output;

/// Runs the check of that name.
pub fn child(name: &str, args: &GpuCheckArgs) {
    let tell = |line: &Value| {
        // Nobody reads: the one who asked has gone.
        let _ = output::line(&line.to_string());
    };
    let Some(entry) = CHECKS.iter().find(|entry| entry.name == name) else {
        return tell(&json!({"end": format!("there is no check `{name}`")}));
    };
    let setting = Setting { ordinal: args.device, small: args.small };
    let check = || {
        let mut figures = |figure: Figure| tell(&line(&figure));
        (entry.check)(&setting, &mut Report::new(setting.small, &mut figures))
    };
    // On a thread of its own: some checks start a system of actors, and this thread has one.
    let ended = std::thread::scope(|scope| {
        let check = scope.spawn(|| catch_unwind(AssertUnwindSafe(check)));
        check.join().and_then(|ended| ended)
    });
    let error = match ended {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(panic) => Some(format!("it panicked: {}", words_of(&*panic))),
    };
    tell(&json!({"end": error}));
}

fn words_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

fn line(figure: &Figure) -> Value {
    let bound = figure.bound.map(|bound| match bound {
        Bound::AtMost(value) => json!({"at_most": value}),
        Bound::AtLeast(value) => json!({"at_least": value}),
        Bound::Floor(value) => json!({"floor": value}),
    });
    json!({
        "what": figure.what,
        "value": figure.value,
        "unit": figure.unit,
        "bound": bound,
        "verdict": figure.verdict.words(),
        "detail": figure.detail,
        // As they stand in the table.
        "figure": figure.number(),
        "of_floor": figure.of_floor(),
        "judged": figure.judged(),
        "floor": figure.bound.map(|bound| bound.to_string()),
    })
}
