//! Abuse of the real binary: a table of bad requests, connections that misuse their protocol, and floods. Each gets an error of the right
//! shape or a clean end, memory stays flat, and a stream beside them goes on with its right text.

mod connections;
mod grammars;
mod prompts;
mod requests;
mod templates;
mod wire;

use std::{
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use faser_tests::{Server, client::Client, metrics::wait_until_idle};
use serde_json::{Value, json};

/// Short times, so that the tests need not wait long for them; room for more connections than any test opens.
const CONFIG: &str = "\
server: {header_timeout_s: 2, body_timeout_s: 2, write_timeout_s: 2, keep_alive_s: 4, max_connections: 60000}
model:
  name: tiny
  synthetic: {preset: tiny, max_context: 8192}
log: {level: info}
";
/// What memory may grow by meanwhile: buffers of ten thousand connections, and one body in flight for each worker.
const GROWTH_BYTES: u64 = 768 << 20;

fn server() -> Arc<Server> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    Server::shared(&SHARED, CONFIG)
}

fn good() -> Value {
    json!({"prompt": "steady", "max_tokens": 300, "temperature": 0.8, "seed": 9, "stream": true})
}

/// Does `what` while one stream after the other runs beside it, and looks at their texts, at memory, and that nothing is left behind.
fn undisturbed<T>(server: &Server, what: impl FnOnce() -> T) -> T {
    let client = server.client();
    let alone = text(client);
    let (before, over) = (server.resident_bytes(), AtomicBool::new(false));
    let (result, most, streams) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut streams = 0;
            while !over.load(Ordering::Relaxed) || streams == 0 {
                assert_eq!(text(client), alone, "a stream beside the abuse");
                streams += 1;
            }
            streams
        });
        let memory = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(server.resident_bytes());
                std::thread::sleep(Duration::from_millis(5));
            }
            most
        });
        // Also when it fails, or the others would never end.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(what));
        over.store(true, Ordering::Relaxed);
        let streams = beside.join().expect("the streams beside the abuse");
        let most = memory.join().expect("memory can be looked at");
        (result.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), most, streams)
    });
    let after = server.resident_bytes();
    println!(
        "{streams} streams beside it were right; resident: {} MiB before, {} at most, {} after",
        before >> 20,
        most >> 20,
        after >> 20
    );
    assert!(most <= before + GROWTH_BYTES, "memory grew from {before} to {most} bytes");
    wait_until_idle(client);
    assert_eq!(client.get("/ready").status, 200);
    assert!(!server.output().contains("ERROR"), "strangers fill the log");
    result
}

fn text(client: &Client) -> String {
    let transcript = client.stream("/v1/completions", &good()).transcript();
    assert!(transcript.complete(), "{transcript:?}");
    transcript.text
}
