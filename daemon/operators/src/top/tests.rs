//! Frames of fixed snapshots, and what keys do.

use ratatui::style::Color;
use serde_json::{Value, json};

use super::*;

fn snapshot(replicas: usize) -> Value {
    let mut k_histogram = vec![0; 17];
    k_histogram[..3].copy_from_slice(&[10, 30, 60]);
    let mut places: Vec<Option<f64>> = vec![None; 16];
    places[..2].copy_from_slice(&[Some(0.9), Some(0.5)]);
    let figures = json!({
        "running": 24, "waiting": 3, "partition": 1, "target_kv": {"total": 400, "free": 100, "cached": 50},
        "draft_kv": {"total": 200, "free": 200, "cached": 0}, "draft_busy": 0.25, "verify_busy": 0.75,
        "output_tokens_per_s": 1405.4, "prompt_tokens_per_s": 123.0, "requests_per_s": 4.25, "passes_per_s": 47.0,
        "rows_per_pass": 32.3, "acceptance": 0.89, "tokens_per_chunk": 1.26, "k_histogram": k_histogram,
        "acceptance_by_position": places, "overlapped": 0.97, "chunks_cancelled_per_s": 408.0, "rows_pruned_per_s": 2.5,
    });
    let passes = json!([
        {"lane": "verify", "began_us": 4_500_000, "ended_us": 5_000_000, "cancelled": 0},
        {"lane": "draft", "began_us": 4_600_000, "ended_us": 4_900_000, "cancelled": 0},
        {"lane": "draft", "began_us": 4_900_000, "ended_us": 5_000_000, "cancelled": 2},
    ]);
    let replica = |replica| {
        json!({"replica": replica, "state": "serving", "answers": true, "figures": figures,
            "timeline": {"now_us": 5_000_000, "from_us": 0, "passes": passes}})
    };
    let request = |id: &str| {
        json!({"id": id, "state": "decode", "k": 2, "acceptance": 0.5, "prompt_tokens": 12, "output_tokens": 143,
            "max_new_tokens": 160, "tokens_per_pass": 1.5, "age_s": 2.7, "ttft_s": 0.053})
    };
    json!({
        "state": "serving", "detail": "serving", "version": "0.1.0", "uptime_s": 720.0,
        "model": {"name": "rustdoc", "device_kind": "cpu", "device": "a processor", "unit": "cores",
            "partitions": [{"draft": 4, "verify": 4}, {"draft": 1, "verify": 3}]},
        "policy": {"policy": "faser", "max_running": 64, "max_waiting": 256},
        "total": figures, "replicas": (0..replicas).map(replica).collect::<Vec<_>>(),
        "slowest": [request("0-7"), request("1-8")], "a_field_of_tomorrow": 1,
    })
}

fn came(value: &Value) -> Message {
    Message::Status(serde_json::from_value(value.clone()).unwrap())
}

fn state(replicas: usize) -> State {
    let mut state = State::new(Duration::from_secs(1));
    state.take(came(&snapshot(replicas)));
    state
}

fn shown(state: &State, size: (u16, u16)) -> String {
    text(&frame(state, size))
}

#[track_caller]
fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word} is missing in\n{text}");
    }
}

#[test]
fn a_draft_that_is_retired_is_said() {
    let mut value = snapshot(2);
    assert!(!shown(&state(2), (100, 36)).contains("retired"));
    value["replicas"][1]["draft_retired"] = json!("GPU 1 is lost");
    let mut state = State::new(Duration::from_secs(1));
    state.take(came(&value));
    has(&shown(&state, (100, 36)), &["serving", "policy faser, draft retired"]);
}

#[test]
fn a_frame_has_all_figures() {
    let text = shown(&state(1), (100, 36));
    has(&text, &["faser", "serving", "rustdoc on cpu, policy faser", "0.1.0 up 12 min", "every 1.0 s"]);
    has(&text, &["1405", "of prompts 123", "4.2 requests/s", "47 passes/s of 32 rows"]);
    has(
        &text,
        &["24 running of 64", "3 waiting of 256", "300 of 400 blocks", "0 of 200 blocks", "1 + 3 cores"],
    );
    has(
        &text,
        &[
            "verify  75 %",
            "draft   25 %",
            "97 % of passes overlapped",
            "408 chunks/s cancelled",
            "2.5 rows/s pruned",
        ],
    );
    has(&text, &["of 1.26 tokens each", "accepted 89 %", "10  30  60", "90  50"]);
    has(&text, &["oldest requests", "0-7", "decode", "143 of 160", "2.7 s", "53 ms"]);
    has(&text, &["q quit", "p pause", "h help"]);
}

#[test]
fn the_lanes_have_their_colours() {
    let buffer = frame(&state(1), (100, 36));
    let count = |color| buffer.content.iter().filter(|cell| cell.fg == color && cell.symbol() == "█").count();
    // Of some 84 cells for one second: 0.5 s of verification, 0.3 s of drafting under it, 0.1 s of what was cancelled.
    let lanes: Vec<&str> = shown_lines(&buffer, "verify  75 %");
    let blocks = |line: &str| line.chars().filter(|c| ('▁'..='█').contains(c)).count();
    assert!((40..=44).contains(&blocks(lanes[0])) && (32..=36).contains(&blocks(lanes[1])), "{lanes:#?}");
    assert!(
        count(Color::Red) >= 7 && count(Color::Green) >= 20,
        "{} {}",
        count(Color::Red),
        count(Color::Green)
    );
}

/// The line with these words, and the one below.
fn shown_lines(buffer: &Buffer, words: &str) -> Vec<&'static str> {
    let text: &'static str = Box::leak(text(buffer).into_boxed_str());
    let lines = text.lines().skip_while(|line| !line.contains(words));
    lines.take(2).collect()
}

#[test]
fn small_terminals_show_what_there_is_room_for() {
    for (size, there, missing) in [
        ((80, 24), &["1405", "verify", "accepted 89 %", "q quit"][..], &[][..]),
        ((60, 16), &["1405", "verify", "request"], &["by place"]),
        ((50, 10), &["1405", "q quit"], &["verify", "by place", "request "]),
        ((30, 5), &["faser serving", "1405 tokens/s", "accepted 89 %"], &["q quit"]),
        ((8, 2), &["faser"], &[]),
        ((1, 1), &["f"], &[]),
    ] {
        let text = shown(&state(1), size);
        has(&text, there);
        for word in missing {
            assert!(!text.contains(word), "{word} at {size:?} in\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(size.0)), "{size:?}:\n{text}");
    }
    // No size is too odd to be drawn.
    let mut state = state(2);
    state.help = true;
    for columns in (1..130).step_by(16) {
        for lines in (1..50).step_by(7) {
            shown(&state, (columns, lines));
        }
    }
}

#[test]
fn a_daemon_that_loads_or_has_gone_is_shown() {
    let mut state = State::new(Duration::from_secs(1));
    has(&shown(&state, (100, 30)), &["Connecting"]);
    state.take(Message::Gone("no daemon at /x".to_owned()));
    has(&shown(&state, (100, 30)), &["no daemon", "Waiting", "/x"]);
    state.take(came(&json!({"state": "loading", "detail": "target model, 40 %", "version": "0.1.0"})));
    has(&shown(&state, (100, 30)), &["loading", "target model, 40 %"]);
    state.take(came(&snapshot(1)));
    state.take(Message::Gone("it has ended".to_owned()));
    // The last figures stay.
    has(&shown(&state, (100, 30)), &["no daemon", "it has ended; waiting", "1405"]);
    state.take(came(&snapshot(1)));
    assert!(!shown(&state, (100, 30)).contains("it has ended"));
}

#[test]
fn keys_do_what_help_says() {
    let mut state = state(2);
    assert_eq!(state.press('q'), Asked::Quit);
    state.press('h');
    has(&shown(&state, (100, 36)), &["the next replica, or all together"]);
    state.press('h');
    assert_eq!((state.press('-'), state.every), (Asked::Interval, Duration::from_millis(500)));
    assert_eq!((state.press('+'), state.every), (Asked::Interval, Duration::from_secs(1)));
    for _ in 0..10 {
        state.press('-');
    }
    assert_eq!((state.press('-'), state.every), (Asked::Nothing, Duration::from_millis(100)));
    // All, then one after the other, then all again.
    let mut seen = Vec::new();
    for _ in 0..3 {
        state.press('r');
        seen.push(state.replica);
    }
    assert_eq!(seen, [Some(0), Some(1), None]);
    state.press('r');
    let text = shown(&state, (100, 36));
    has(&text, &["replica 0", "lanes of replica 0", "0-7"]);
    assert!(!text.contains("1-8"), "another replica's request:\n{text}");
    state.press('p');
    state.take(Message::Gone("it has ended".to_owned()));
    let text = shown(&state, (100, 36));
    has(&text, &["paused"]);
    assert!(!text.contains("it has ended"));
}

#[test]
fn a_daemon_that_was_started_anew_begins_a_new_past() {
    let mut state = state(1);
    let mut later = snapshot(1);
    later["replicas"][0]["timeline"] = json!({"now_us": 6_000_000, "from_us": 5_000_000, "passes": []});
    state.take(came(&later));
    assert_eq!(state.lanes[&0].passes.len(), 3, "what came before is kept");
    later["replicas"][0]["timeline"] = json!({"now_us": 9_000_000, "from_us": 8_000_000, "passes": []});
    state.take(came(&later));
    assert_eq!((state.lanes[&0].passes.len(), state.lanes[&0].from_us), (0, 8_000_000), "a hole");
    later["replicas"][0]["timeline"] = json!({"now_us": 1_000, "from_us": 0, "passes": []});
    state.take(came(&later));
    assert_eq!(state.lanes[&0].now_us, 1_000);
}

#[test]
fn intervals_and_sizes_are_read_and_wrong_ones_refused() {
    assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
    assert_eq!(size("120x40"), Ok((120, 40)));
    for wrong in ["", "0", "61", "-1", "NaN", "inf", "x"] {
        assert!(interval(wrong).is_err(), "{wrong}");
    }
    for wrong in ["", "120", "0x40", "120x", "501x2", "-1x2"] {
        assert!(size(wrong).is_err(), "{wrong}");
    }
}
